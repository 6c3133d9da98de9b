// AdamW in memory beside memcpy, and a step over state in files beside bare transfers, in one run.
//
//   offload_bench FOLDER [million elements = 32] [rounds = 11] [threads = all cores]
//
// FOLDER must be on the disk that is measured. Everything takes turns within a round; printed are
// medians. Bytes are what must move: AdamW reads 16 and writes 12 bytes an element, memcpy counts
// what it reads and what it writes; a step over files reads 8 and writes 8 (both moments).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "strata/ops/adamw.h"
#include "strata/optim/sub_group_walk.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kSubGroup = 1 << 22;

struct Contender {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double gb_per_second() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return bytes / sorted[sorted.size() / 2] / 1e9;
  }
};

void copy_in_parallel(const at::Tensor& to, const at::Tensor& from) {
  at::parallel_for(0, from.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    std::memcpy(to.data_ptr<float>() + begin, from.data_ptr<float>() + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  });
}

constexpr ops::AdamWStep kStep{.learning_rate = 1e-4,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .weight_decay = 0.01,
                               .step = 3,
                               .grad_scale = 1};

// Both moments in a file, weights and gradients in memory, as with offload_optimizer_device nvme.
struct StateInFile {
  shard::HomeFile file;
  at::Tensor weights, gradients;
  std::unique_ptr<optim::SubGroupWalk> walk;
  std::string transport;

  StateInFile(const std::string& folder, FileQueueOptions::Backend backend,
              const at::Tensor& weights_in, const at::Tensor& gradients_in)
      : file({.folder = folder, .queue = {.backend = backend}},
             backend == FileQueueOptions::Backend::kThreads ? "threads" : "io_uring",
             2 * shard::HomeFile::size_bytes(weights_in.numel(), at::kFloat)),
        weights(weights_in),
        gradients(gradients_in),
        transport(file.transport()) {
    const int64_t n = weights.numel();
    const shard::FileRegion m = file.add(n, at::kFloat), v = file.add(n, at::kFloat);
    std::vector<optim::SubGroup> groups;
    for (int64_t begin = 0; begin < n; begin += kSubGroup) {
      groups.push_back({0,
                        0,
                        begin,
                        std::min(kSubGroup, n - begin),
                        {{weights}, {file.view(m), &file, m}, {file.view(v), &file, v}}});
    }
    walk = std::make_unique<optim::SubGroupWalk>(std::move(groups));
  }

  void step() {
    walk->run([&](const optim::SubGroup& group, std::span<const at::Tensor> parts) {
      ops::adamw_(parts[0], gradients.narrow(0, group.begin, group.length), parts[1], parts[2],
                  kStep);
    });
  }
  void only_move() {
    walk->run([](const optim::SubGroup&, std::span<const at::Tensor>) {});
  }
};

int run(const std::string& folder, int64_t elements, int rounds) {
  const at::Tensor weights = at::rand({elements}), gradients = at::rand({elements});
  const at::Tensor m = at::zeros({elements}), v = at::zeros({elements});
  StateInFile uring(folder, FileQueueOptions::Backend::kAutomatic, weights, gradients);
  StateInFile threads(folder, FileQueueOptions::Backend::kThreads, weights, gradients);
  const auto count = static_cast<double>(elements);
  std::vector<Contender> contenders = {
      {"memcpy", 8 * count, [&] { copy_in_parallel(m, gradients); }},
      {"adamw in memory", 28 * count, [&] { ops::adamw_(weights, gradients, m, v, kStep); }},
      {"transfers, " + uring.transport, 16 * count, [&] { uring.only_move(); }},
      {"adamw step, " + uring.transport, 16 * count, [&] { uring.step(); }},
      {"transfers, threads", 16 * count, [&] { threads.only_move(); }},
      {"adamw step, threads", 16 * count, [&] { threads.step(); }},
  };
  for (int round = -1; round < rounds; ++round) {  // one to warm up
    for (Contender& contender : contenders) {
      const auto start = Clock::now();
      contender.run();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (round >= 0) contender.seconds.push_back(seconds);
    }
  }
  fmt::print("{} million elements, {} threads, direct transfers: {}\n", elements / 1000000,
             at::get_num_threads(), uring.file.file().is_direct() ? "yes" : "no");
  const size_t kBase[] = {0, 0, 2, 2, 4, 4};
  for (size_t i = 0; i < contenders.size(); ++i) {
    const double rate = contenders[i].gb_per_second();
    const Contender& base = contenders[kBase[i]];
    fmt::print("{:<24}{:>8.2f} GB/s {:>9.1f} ms", contenders[i].name, rate,
               contenders[i].bytes / rate / 1e6);
    if (&base != &contenders[i])
      fmt::print("   x {:.2f} of {}", rate / base.gb_per_second(), base.name);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: offload_bench FOLDER [million elements] [rounds] [threads]\n");
    return 2;
  }
  const int64_t millions = argc > 2 ? std::atoll(argv[2]) : 32;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 11;
  if (argc > 4) at::set_num_threads(std::atoi(argv[4]));
  return strata::run(argv[1], millions * 1000000, rounds);
}
