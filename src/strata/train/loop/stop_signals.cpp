#include "strata/train/loop/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace strata::train {
namespace {

// A handler reaches nothing but static storage.
std::atomic<bool> requested = false;
std::atomic<bool> tells_of_interrupt = false;
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::string_view kInterrupted =
    "\ninterrupted: ends when this step is done and saved; Ctrl-C again ends at once\n";

void note_request(int number) {
  requested = true;
  if (number != SIGINT || !tells_of_interrupt) return;
  const int error = errno;  // of what was interrupted
  // Nothing can be done about a message that finds no reader.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, kInterrupted.data(), kInterrupted.size());
  errno = error;
}

}  // namespace

bool is_any_asked(const StopRequest& request, comm::Group& world) {
  if (!request) return false;
  at::Tensor asked = at::full({1}, request() ? 1 : 0, at::kInt);
  world.all_reduce(asked, comm::Reduction::kMax)->wait();
  return asked.item<int>() != 0;
}

StopSignals::StopSignals(bool tells) {
  requested = false;
  tells_of_interrupt = tells;
  install(SIGTERM, 0);
  install(SIGUSR1, 0);
  install(SIGHUP, 0);
  install(SIGINT, SA_RESETHAND);
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

}  // namespace strata::train
