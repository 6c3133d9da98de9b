#include "strata/train/saving/result_retry.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/agreement.h"
#include "strata/memory/plan_text.h"

namespace strata::train {
namespace {

// How long SIGTERM may wait for its answer.
constexpr std::chrono::milliseconds kNap(100);

std::string duration_text(std::chrono::milliseconds duration) {
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(duration).count();
  return minutes > 0 ? fmt::format("{} min", minutes)
                     : fmt::format("{} s", static_cast<double>(duration.count()) / 1000);
}

}  // namespace

std::optional<std::string> obstacle_to_result(const std::filesystem::path& folder,
                                              uint64_t size_bytes) {
  try {
    if (!std::filesystem::is_directory(folder)) {
      return fmt::format("found no folder {}", folder.string());
    }
    const uint64_t found = available_bytes(folder);
    if (found < size_bytes) {
      return fmt::format("found {} free in {}, expected {}",
                         memory::size_text(static_cast<int64_t>(found)), folder.string(),
                         memory::size_text(static_cast<int64_t>(size_bytes)));
    }
    require_writable_folder(folder);
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

bool may_be_mended(const std::string& refusal) {
  return refusal.find(errno_text(EFBIG)) == std::string::npos;
}

bool ResultRetry::waits(const std::string& refusal, bool may_wait) {
  const bool decides = group_.rank() == 0;
  if (decides && may_wait) begin(refusal);
  // One collective a pause: none takes longer than it may.
  while (true) {
    Answer answer = Answer::kGiveUp;
    if (decides && may_wait) answer = look();
    std::array<double, 1> shared = {static_cast<double>(answer)};
    comm::broadcast_numbers(group_, shared);
    answer = static_cast<Answer>(static_cast<int>(shared[0]));
    if (answer != Answer::kWait) return answer == Answer::kTryAgain;
  }
}

void ResultRetry::begin(const std::string& refusal) {
  if (since_) {
    pause_ = std::min(2 * pause_, options_.longest_pause);
    return;
  }
  since_ = Clock::now();
  const auto obstacle = options_.obstacle();
  options_.say(fmt::format(
      "warning: {}{}; what was trained is only in memory: the run keeps it and writes it once it "
      "can, for {}: free space, or repair the folder; SIGTERM, or Ctrl-C twice, gives it up",
      refusal, obstacle ? " (" + *obstacle + ")" : "", duration_text(options_.longest)));
}

ResultRetry::Answer ResultRetry::look() {
  if (!sleep() || Clock::now() - *since_ > options_.longest) return Answer::kGiveUp;
  if (options_.obstacle()) return Answer::kWait;
  options_.say("trying once more to write the result");
  return Answer::kTryAgain;
}

bool ResultRetry::sleep() const {
  const Clock::time_point end = Clock::now() + pause_;
  while (Clock::now() < end) {
    if (options_.is_told_to_end()) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(kNap, end - Clock::now()));
  }
  return !options_.is_told_to_end();
}

}  // namespace strata::train
