// What a run does whose result cannot be written while nothing but its memory holds what was
// trained: it keeps that and tries again once the folder takes files, for an hour, or until
// SIGTERM. Owns: the decision, which is rank 0's, and its pace. Never: writes a result.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "strata/comm/group.h"

namespace strata::train {

// Why nothing of `size_bytes` can be written to the folder now, in words; nothing where it seems to
// take it.
std::optional<std::string> obstacle_to_result(const std::filesystem::path& folder,
                                              uint64_t size_bytes);

// Whether waiting may mend what the disk refused: not a file that is larger than the file system,
// or a limit of the process (ulimit -f), lets any be.
bool may_be_mended(const std::string& refusal);

class ResultRetry {
 public:
  struct Options {
    // Rank 0's.
    std::function<std::optional<std::string>()> obstacle;
    std::function<bool()> is_told_to_end;
    std::function<void(const std::string&)> say;
    // Between looks at the folder; doubled after each try that failed although nothing was in the
    // way, such as a quota that is told to nobody, up to `longest_pause`.
    std::chrono::milliseconds pause = std::chrono::seconds(5);
    std::chrono::milliseconds longest_pause = std::chrono::minutes(1);
    std::chrono::milliseconds longest = std::chrono::hours(1);
  };
  // `group`: of all ranks; must outlive it.
  ResultRetry(comm::Group& group, Options options)
      : group_(group), options_(std::move(options)), pause_(options_.pause) {}

  // After a try that failed: waits, and returns whether to try again, on all ranks alike.
  // `refusal`: rank 0's words for what the disk refused. `may_wait`: rank 0's; where the disk holds
  // what was trained there is nothing to wait for. Collective.
  bool waits(const std::string& refusal, bool may_wait);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Answer { kGiveUp, kTryAgain, kWait };

  void begin(const std::string& refusal);
  // Looks at the folder after one pause.
  Answer look();
  // Whether a whole pause went by: being told to end cuts it short.
  bool sleep() const;

  comm::Group& group_;
  Options options_;
  std::chrono::milliseconds pause_;
  std::optional<Clock::time_point> since_;  // the first failure
};

}  // namespace strata::train
