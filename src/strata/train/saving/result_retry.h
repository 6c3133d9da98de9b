// What a run does whose result cannot be written while nothing but its memory holds what was
// trained: it keeps that and tries again once the folder takes files, for an hour, or until it is
// asked to stop. Owns: the decision, which is rank 0's, and its pace. Never: writes a result.
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

class ResultRetry {
 public:
  struct Options {
    // Rank 0's.
    std::function<std::optional<std::string>()> obstacle;
    std::function<bool()> is_asked_to_stop;
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
  // `failure`: rank 0's words for what the disk refused; nothing where something else failed, which
  // no waiting mends. Collective.
  bool waits(const std::optional<std::string>& failure);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Answer { kGiveUp, kTryAgain, kWait };

  void begin(const std::string& failure);
  // After one pause.
  Answer look();
  // Whether a whole pause went by: a request to stop cuts it short.
  bool sleep() const;

  comm::Group& group_;
  Options options_;
  std::chrono::milliseconds pause_;
  std::optional<Clock::time_point> since_;  // the first failure
};

}  // namespace strata::train
