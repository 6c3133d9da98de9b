#include "strata/train/stop_signals.h"

#include <atomic>

namespace strata::train {
namespace {

// A handler reaches nothing but static storage.
std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

bool is_any_asked(const StopRequest& request, comm::Group& world) {
  if (!request) return false;
  at::Tensor asked = at::full({1}, request() ? 1 : 0, at::kInt);
  world.all_reduce(asked, comm::Reduction::kMax)->wait();
  return asked.item<int>() != 0;
}

StopSignals::StopSignals() {
  requested = false;
  struct sigaction action = {};
  action.sa_handler = [](int) { requested = true; };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &previous_term_);
  ::sigaction(SIGUSR1, &action, &previous_user_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &previous_term_, nullptr);
  ::sigaction(SIGUSR1, &previous_user_, nullptr);
}

bool StopSignals::is_requested() const { return requested; }

}  // namespace strata::train
