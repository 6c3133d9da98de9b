#include "strata/train/stop_signals.h"

#include <unistd.h>

#include <atomic>
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
  // Nothing can be done about a message that finds no reader.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, kInterrupted.data(), kInterrupted.size());
}

struct sigaction install(int number, int flags) {
  struct sigaction action = {};
  action.sa_handler = note_request;
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  struct sigaction previous;
  ::sigaction(number, &action, &previous);
  return previous;
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
  previous_term_ = install(SIGTERM, 0);
  previous_user_ = install(SIGUSR1, 0);
  previous_interrupt_ = install(SIGINT, SA_RESETHAND);
  const bool is_ignored =
      (previous_interrupt_.sa_flags & SA_SIGINFO) == 0 && previous_interrupt_.sa_handler == SIG_IGN;
  if (is_ignored) ::sigaction(SIGINT, &previous_interrupt_, nullptr);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &previous_term_, nullptr);
  ::sigaction(SIGUSR1, &previous_user_, nullptr);
  ::sigaction(SIGINT, &previous_interrupt_, nullptr);
}

bool StopSignals::is_requested() const { return requested; }

}  // namespace strata::train
