// Collectives of two or more ranks of this machine: shared memory beside Gloo, in one run.
//
//   comm_bench [ranks = 2] [MiB = 64] [rounds = 15]
//
// The size is that of the whole tensor (what an all-gather fills, what a reduce-scatter reads).
// Transports take turns within a round, so that load of the machine meets all of them; printed are
// the medians over the rounds, each the time of the slowest rank. "c10d" is the reduce-scatter that
// c10d's Gloo backend has itself, "gloo" the one this program uses (an all-to-all).
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "strata/comm/gloo_group.h"
#include "strata/comm/rendezvous.h"
#include "strata/comm/shm_group.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;

struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;
};

struct Task {
  std::string name;
  std::vector<Contender> contenders;  // the first is the one compared with the others
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> make_c10d(Rendezvous& rendezvous) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto base = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&rendezvous.store());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("c10d", base), rendezvous.options().rank,
      rendezvous.options().world_size, options);
}

// Returns the time of the slowest rank.
double timed(Group& group, const std::function<void()>& run) {
  group.barrier();
  const auto start = Clock::now();
  run();
  at::Tensor seconds =
      at::full({1}, std::chrono::duration<double>(Clock::now() - start).count(), at::kDouble);
  group.all_reduce(seconds, Reduction::kMax)->wait();
  return seconds.item<double>();
}

void add_tasks(std::vector<Task>& tasks, Group& shm, Group& gloo, c10d::ProcessGroupGloo& c10d,
               at::ScalarType type, int64_t bytes) {
  const int64_t share = bytes / shm.size() / static_cast<int64_t>(at::elementSize(type));
  const at::Tensor whole = at::ones({share * shm.size()}, type);
  const at::Tensor own = at::ones({share}, type);
  const std::string suffix = type == at::kFloat ? " fp32" : " bf16";
  const auto on = [](Group& group, auto method) {
    return [&group, method] { method(group)->wait(); };
  };
  const auto gather = [=](Group& group) { return group.all_gather(whole, own); };
  const auto scatter = [=](Group& group) { return group.reduce_scatter(own, whole); };
  const auto reduce = [=](Group& group) { return group.all_reduce(whole); };
  const auto broadcast = [=](Group& group) { return group.broadcast(whole, 0); };
  const auto library = [&c10d, whole, own] {
    at::Tensor out = own, in = whole;
    c10d._reduce_scatter_base(out, in, c10d::ReduceScatterOptions())->wait();
  };
  tasks.push_back(
      {"all-gather" + suffix, {{"shm", on(shm, gather), {}}, {"gloo", on(gloo, gather), {}}}});
  tasks.push_back(
      {"reduce-scatter" + suffix,
       {{"shm", on(shm, scatter), {}}, {"gloo", on(gloo, scatter), {}}, {"c10d", library, {}}}});
  tasks.push_back(
      {"all-reduce" + suffix, {{"shm", on(shm, reduce), {}}, {"gloo", on(gloo, reduce), {}}}});
  tasks.push_back(
      {"broadcast" + suffix, {{"shm", on(shm, broadcast), {}}, {"gloo", on(gloo, broadcast), {}}}});
}

void print(const std::vector<Task>& tasks, int64_t bytes) {
  for (const Task& task : tasks) {
    const double ours = median(task.contenders[0].seconds);
    std::string line = fmt::format("{:<20}", task.name);
    for (const Contender& contender : task.contenders) {
      const double seconds = median(contender.seconds);
      line += fmt::format("  {} {:8.3f} ms {:6.2f} GB/s", contender.name, seconds * 1e3,
                          static_cast<double>(bytes) / seconds / 1e9);
      if (&contender != &task.contenders[0]) line += fmt::format(" (shm x {:.2f})", seconds / ours);
    }
    std::puts(line.c_str());
  }
}

int run_rank(int rank, int size, int port, int64_t bytes, int rounds) {
  at::set_num_threads(1);
  Rendezvous rendezvous({.rank = rank, .world_size = size, .port = port});
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  std::string reason;
  const auto shm = make_shm_group(rendezvous, "shm", ranks, reason);
  if (!shm) {
    if (rank == 0) fmt::print(stderr, "error: shared memory: {}\n", reason);
    return 1;
  }
  const auto gloo = make_gloo_group(rendezvous, "gloo", ranks);
  const auto c10d = make_c10d(rendezvous);
  std::vector<Task> tasks;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    add_tasks(tasks, *shm, *gloo, *c10d, type, bytes);
  }
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (Task& task : tasks) {
      for (Contender& contender : task.contenders) {
        const double seconds = timed(*shm, contender.run);
        if (round >= 0) contender.seconds.push_back(seconds);
      }
    }
  }
  if (rank == 0) print(tasks, bytes);
  shm->barrier();
  return 0;
}

}  // namespace
}  // namespace strata::comm

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t bytes = (argc > 2 ? std::atoll(argv[2]) : 64) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  const int port = 20000 + static_cast<int>(::getpid() % 20000);
  for (int rank = 1; rank < ranks; ++rank) {
    if (::fork() == 0) return strata::comm::run_rank(rank, ranks, port, bytes, rounds);
  }
  const int result = strata::comm::run_rank(0, ranks, port, bytes, rounds);
  for (int rank = 1; rank < ranks; ++rank) ::wait(nullptr);
  return result;
}
