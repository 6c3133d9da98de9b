// Watches what the ranks of this machine wait for. Owns: their status pages, the files that hold
// their stacks. Never: stops a rank (supervisor.h).
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/status_page.h"

namespace strata::launch {

// The variables that hand a rank its page and the file for its stacks, as descriptors.
inline constexpr const char* kStatusVariable = "STRATA_STATUS_FD";
inline constexpr const char* kStackVariable = "STRATA_STACK_FD";

// What the launcher and one rank share. Anonymous memory: it goes with the last of the two.
class WatchedRank {
 public:
  // Without memory for it the rank runs unwatched.
  explicit WatchedRank(int rank);
  ~WatchedRank();
  WatchedRank(WatchedRank&& other) noexcept;
  WatchedRank(const WatchedRank&) = delete;
  WatchedRank& operator=(const WatchedRank&) = delete;

  int rank() const { return rank_; }
  // To be inherited.
  int status_descriptor() const { return status_.get(); }
  int stack_descriptor() const { return stack_.get(); }
  StatusReading read() const;

  // Asks every thread of the rank for its stack, one by one, for a few seconds at most. Returns
  // the text, with a line for each thread that could not answer and why. `group`: the process
  // group in which the rank must be.
  std::string stacks(int group) const;

 private:
  int rank_;
  Descriptor status_, stack_;
  StatusPage* page_ = nullptr;
};

// A rank at one moment.
struct Observation {
  int rank = 0;
  StatusReading reading;
  char state = ' ';  // as the system tells it: R, S, D, T, Z
};
// A rank that waits for longer than `limit` makes a hang: the sentence that says so, naming the
// rank that is not where the others wait. None: no rank waits that long.
std::optional<std::string> describe_hang(const std::vector<Observation>& ranks,
                                         std::chrono::milliseconds limit);

// The same of a wait that is no hang yet: a line that says for whom ranks wait for longer than
// `notable`, and that all are stopped at `limit`.
std::optional<std::string> describe_wait(const std::vector<Observation>& ranks,
                                         std::chrono::milliseconds notable,
                                         std::chrono::milliseconds limit);

// Says of waits what the person who started the run wants to hear: each when it becomes notable,
// and again when it, or a later one, lasts twice as long as what was told. Slow ranks of a run that
// goes on are told of every ten minutes.
class WaitWords {
 public:
  // `limit`: as above, also of later calls.
  std::optional<std::string> next(const std::vector<Observation>& ranks,
                                  std::chrono::milliseconds limit,
                                  std::chrono::steady_clock::time_point now);

 private:
  std::chrono::milliseconds told_{0};
  std::chrono::steady_clock::time_point told_at_;
};

// The state of a process: R runs, S sleeps, D waits for a device, T is stopped; '?': none.
char state_of_process(int process);

}  // namespace strata::launch
