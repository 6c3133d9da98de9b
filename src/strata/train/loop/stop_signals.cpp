#include "strata/train/loop/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include <ATen/ATen.h>

namespace strata::train {
namespace {

// A handler reaches nothing but static storage.
std::atomic<bool> requested = false, terminated = false;
std::atomic<bool> tells_of_interrupt = false;
std::atomic<bool> has_begun = false, is_at_end = false;
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::string_view kInterrupted =
    "\ninterrupted: ends when this step is done and saved; Ctrl-C again ends at once\n";
constexpr std::string_view kInterruptedAtEnd =
    "\ninterrupted: training is over, ends when the result is written; Ctrl-C again leaves it "
    "unwritten\n";

void note_request(int number) {
  requested = true;
  if (number == SIGTERM) terminated = true;
  if (number != SIGINT || !tells_of_interrupt) return;
  const int error = errno;  // of what was interrupted
  // Nothing can be done about a message that finds no reader.
  const std::string_view text = is_at_end ? kInterruptedAtEnd : kInterrupted;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

}  // namespace

bool is_any_asked(const StopRequest& request, comm::Group& world) {
  if (!request) return false;
  at::Tensor asked = at::full({1}, request() ? 1 : 0, at::kInt);
  world.all_reduce(asked, comm::Reduction::kMax)->wait();
  return asked.item<int>() != 0;
}

bool has_training_begun() { return has_begun; }

StopSignals::StopSignals(bool tells) {
  requested = terminated = is_at_end = false;
  tells_of_interrupt = tells;
  install(SIGTERM, 0);
  install(SIGUSR1, 0);
  install(SIGHUP, 0);
  install(SIGINT, SA_RESETHAND);
  has_begun = true;  // last: until then what came before answers
}

void StopSignals::install(int number, int flags) {
  struct sigaction action = {};
  action.sa_handler = note_request;
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  struct sigaction previous;
  ::sigaction(number, &action, &previous);
  replaced_.push_back({number, previous});
  const bool is_ignored = (previous.sa_flags & SA_SIGINFO) == 0 && previous.sa_handler == SIG_IGN;
  if (is_ignored && (number == SIGINT || number == SIGHUP)) {
    ::sigaction(number, &previous, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const Replaced& replaced : replaced_) {
    ::sigaction(replaced.number, &replaced.action, nullptr);
  }
}

bool StopSignals::is_requested() const { return requested; }

bool StopSignals::is_told_to_end() const { return terminated; }

void StopSignals::note_end_of_training() { is_at_end = true; }

}  // namespace strata::train
