#include "strata/comm/rendezvous.h"

#include <numeric>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "strata/base/error.h"
#include "strata/comm/device_group.h"
#include "strata/comm/gloo_group.h"
#include "strata/comm/shm_group.h"
#include "strata/comm/single_group.h"
#include "strata/comm/watched_group.h"

namespace strata::comm {

struct Rendezvous::State {
  c10::intrusive_ptr<c10d::Store> store;
};

int RendezvousOptions::attempt_of_launcher() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr ? std::atoi(count) : 0;
}

Rendezvous::Rendezvous(const RendezvousOptions& options)
    : options_(options), state_(std::make_unique<State>()) {
  if (options.world_size == 1) return;
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(options.port);
  store_options.isServer = options.rank == 0;
  store_options.numWorkers = options.world_size;
  store_options.waitWorkers = true;
  store_options.timeout = std::min(options.timeout, options.join_timeout);
  if (options.listen_descriptor >= 0) store_options.masterListenFd = options.listen_descriptor;
  // A supervisor such as torchrun may already serve the port in this process tree.
  if (const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE")) {
    if (std::string_view(hosted) == "True") store_options.isServer = false;
  }
  try {
    auto tcp = c10::make_intrusive<c10d::TCPStore>(options.address, store_options);
    state_->store = c10::make_intrusive<c10d::PrefixStore>(
        "attempt" + std::to_string(options.attempt), std::move(tcp));
  } catch (const std::exception& e) {
    std::string reason = e.what();
    throw CommError(
        "rendezvous {}:{}: found no meeting of {} ranks ({}), expected every rank to "
        "connect; check main_process_ip, main_process_port and that rank 0 runs",
        options.address, options.port, options.world_size, reason.substr(0, reason.find('\n')));
  }
}

Rendezvous::~Rendezvous() = default;

c10d::Store& Rendezvous::store() {
  if (!state_->store) {
    throw InternalError(
        "rendezvous: found a store asked for with one rank, expected none needed; "
        "report this as a bug");
  }
  return *state_->store;
}

void Rendezvous::require_same(const std::string& what, const std::string& value) {
  if (options_.world_size == 1) return;
  c10d::Store& store = this->store();
  const auto key = [&](int rank) { return "same/" + what + "/" + std::to_string(rank); };
  std::vector<std::string> values;
  try {
    store.set(key(options_.rank), std::vector<uint8_t>(value.begin(), value.end()));
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const std::vector<uint8_t> bytes = store.get(key(rank));
      values.emplace_back(bytes.begin(), bytes.end());
    }
    store.add("same/" + what + "/read", 1);
  } catch (const std::exception& e) {
    const std::string reason = e.what();
    throw CommError(
        "{}: found rank 0 or rank {} gone before the run began ({}), expected every rank to take "
        "part; look at the first failing rank's message",
        what, values.size(), reason.substr(0, reason.find('\n')));
  }
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const std::string& other = values[static_cast<size_t>(rank)];
    if (other != value) {
      await_readers(what);
      throw ConfigError(
          "{}: found \"{}\" on rank {} but \"{}\" on rank {}, expected the same on all "
          "ranks; start every rank with the same flags, files and environment",
          what, value, options_.rank, other, rank);
    }
  }
}

void Rendezvous::await_readers(const std::string& what) {
  if (options_.rank != 0) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  try {
    while (store().add("same/" + what + "/read", 0) < options_.world_size &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception&) {
    // Of the store: nobody can read any more.
  }
}

std::unique_ptr<Group> Rendezvous::make_group(const std::string& name, std::vector<int> ranks,
                                              bool is_watched) {
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(options_.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  if (ranks.size() == 1) return make_single_group();
  std::unique_ptr<Group> group;
  if (options_.shared_memory) {
    std::string reason;
    group = make_shm_group(*this, name, ranks, reason);
  }
  if (!group) group = make_gloo_group(*this, name, ranks);
  if (options_.device.is_cuda()) {
    group = make_device_group(*this, name, ranks, std::move(group));
  }
  return options_.status != nullptr && is_watched ? watch(std::move(group), name, *options_.status)
                                                  : std::move(group);
}

}  // namespace strata::comm
