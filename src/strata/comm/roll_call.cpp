#include "strata/comm/roll_call.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "strata/base/error.h"
#include "strata/comm/tcp.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kNamedRanks = 8;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// "rank 3", "ranks 1, 2", "ranks 1, 2, ... and 40 more".
std::string ranks_text(const std::vector<int>& ranks) {
  const size_t named = std::min(ranks.size(), kNamedRanks);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < named; ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

// Of what a rank announces: "4 process 17 of node#123", the last number being its alone.
std::string process_of(const std::string& told) {
  const size_t start = told.find(' ') + 1;
  return told.substr(start, told.rfind('#') - start);
}

// Calls `remind` each time that `period` has passed, while it lives.
class Reminder {
 public:
  Reminder(milliseconds period, std::function<void()> remind)
      : thread_([this, period, remind = std::move(remind)](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          while (!wake_.wait_for(lock, stop, period, [&] { return stop.stop_requested(); })) {
            remind();
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // ends first
};

class RollCall {
 public:
  explicit RollCall(const RendezvousOptions& options)
      : options_(options),
        limit_(std::min(options.timeout, options.join_timeout)),
        next_word_(options.patience) {}

  c10::intrusive_ptr<c10d::Store> call() {
    connect();
    if (options_.rank == 0) {
      announce();
      await_all();
    } else {
      await_rank_zero();
      const std::string told = told_by(0);
      try {
        announce();
      } catch (const CommError&) {  // rank 0 has ended: perhaps over a world size like this one
        require_same_world(told, 0);
        throw;
      }
      require_same_world(told, 0);
    }
    return store_;
  }

 private:
  static std::string key_of(int rank) { return "roll/rank" + std::to_string(rank); }

  milliseconds passed() const {
    return std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
  }
  bool is_time_to_speak() const { return passed() >= next_word_; }
  bool is_too_late() const { return passed() >= limit_; }

  void say(const std::string& whom, const std::string& reason) {
    if (!is_time_to_speak()) return;
    next_word_ = passed() + seconds(60);
    if (!options_.say) return;
    const auto in_seconds = [](milliseconds time) {
      return static_cast<double>(time.count()) / 1e3;
    };
    options_.say(fmt::format("{}: waiting for {} for {:.0f} s (at most {:g} s): {}", place(), whom,
                             in_seconds(passed()), in_seconds(limit_), reason));
  }

  std::string place() const {
    return fmt::format("rendezvous {}:{}", options_.address, options_.port);
  }

  // Ranks of one machine may well meet at such an address; those of others never do.
  std::string of_this_machine_alone() const {
    if (options_.address != "localhost" && !is_loopback(options_.address)) return "";
    return fmt::format(
        " ({} is each machine itself: a rank of another machine needs the address "
        "that rank 0's has in the network)",
        options_.address);
  }

  std::string told_by(int rank) {
    try {
      return store_->get_to_str(key_of(rank));
    } catch (const std::exception& error) {
      fail(first_line(error));
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw CommError(
        "{}: found no meeting of {} ranks ({}), expected every rank to connect; check "
        "main_process_ip, main_process_port and that rank 0 runs",
        place(), options_.world_size, reason);
  }

  // libtorch may wait for a server that took the connection and never answers: longer than it was
  // told to.
  void connect() {
    c10d::TCPStoreOptions store;
    store.port = static_cast<uint16_t>(options_.port);
    store.isServer = options_.rank == 0;
    store.numWorkers = options_.world_size;
    store.waitWorkers = false;
    if (options_.listen_descriptor >= 0) store.masterListenFd = options_.listen_descriptor;
    // A supervisor such as torchrun may already serve the port in this process tree.
    if (const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE")) {
      if (std::string_view(hosted) == "True") store.isServer = false;
    }
    store.timeout = limit_;
    const Reminder reminder(options_.patience, [this] {
      say("rank 0",
          "nobody answers there; start it, or give this rank the address and port at "
          "which it listens" +
              of_this_machine_alone());
    });
    try {
      auto tcp = c10::make_intrusive<c10d::TCPStore>(options_.address, store);
      store_ = c10::make_intrusive<c10d::PrefixStore>("attempt" + std::to_string(options_.attempt),
                                                      std::move(tcp));
    } catch (const std::exception& error) {
      const std::string reason = first_line(error);
      fail(reason.find("EADDRINUSE") == std::string::npos
               ? reason
               : "the port is taken: by another program, or by another process with RANK 0");
    }
  }

  void announce() {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    const std::string self = fmt::format("{} process {} of {}#{}", options_.world_size, ::getpid(),
                                         host, Clock::now().time_since_epoch().count());
    std::string found;
    try {
      found = store_->compareSet(key_of(options_.rank), std::string(), self);
    } catch (const std::exception& error) {
      fail(first_line(error));
    }
    if (found == self) return;
    throw ConfigError(
        "rank {0}: found that {1} is rank {0} of this run, expected one process of that number; "
        "give each rank a RANK of its own; where one has failed, or a launcher has changed the "
        "number of ranks, restart all of them",
        options_.rank, process_of(found));
  }

  // With a store that a supervisor serves, rank 0 may come later.
  void await_rank_zero() {
    while (!is_there(0)) {
      if (is_too_late()) fail("rank 0 was not heard of");
      say("rank 0", "it has not begun");
      std::this_thread::sleep_for(milliseconds(50));
    }
  }

  bool is_there(int rank) {
    try {
      return store_->check({key_of(rank)});
    } catch (const std::exception& error) {
      fail("rank 0 is gone: " + first_line(error));
    }
  }

  void require_same_world(const std::string& told, int other) const {
    const int size = std::atoi(told.c_str());
    if (size == options_.world_size) return;
    throw ConfigError(
        "world size: found {} on rank {} but {} on rank {} ({}), expected the same on all ranks; "
        "start every rank with the same WORLD_SIZE",
        options_.world_size, options_.rank, size, other, process_of(told));
  }

  // On rank 0.
  void await_all() {
    for (int rank = 1; rank < options_.world_size; ++rank) {
      while (!is_there(rank)) {
        if (is_too_late()) fail(ranks_text(missing_from(rank)) + " did not connect");
        if (is_time_to_speak()) {
          say(fmt::format("{} of {}", ranks_text(missing_from(rank)), options_.world_size),
              "not connected yet; start what is missing with this address and port, or look at "
              "what it says" +
                  of_this_machine_alone());
        }
        std::this_thread::sleep_for(milliseconds(5));
      }
      require_same_world(told_by(rank), rank);
    }
  }

  std::vector<int> missing_from(int first) {
    std::vector<int> missing{first};
    for (int rank = first + 1; rank < options_.world_size; ++rank) {
      if (!is_there(rank)) missing.push_back(rank);
    }
    return missing;
  }

  const RendezvousOptions& options_;
  const Clock::time_point start_ = Clock::now();
  const milliseconds limit_;
  milliseconds next_word_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> call_roll(const RendezvousOptions& options) {
  return RollCall(options).call();
}

}  // namespace strata::comm
