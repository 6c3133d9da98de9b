#include "strata/base/save_request.h"

#include <csignal>
#include <ctime>

namespace strata {
namespace {

sigset_t save_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR2);
  return set;
}

}  // namespace

// Blocked, not handled: a handler would run only once it is there, and interrupt whatever waits.
void hold_save_requests() {
  const sigset_t set = save_signal();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

bool take_save_request() {
  const sigset_t set = save_signal();
  constexpr timespec kAtOnce{};
  bool has_come = false;
  // One may wait for the process and one for this thread.
  while (::sigtimedwait(&set, nullptr, &kAtOnce) == SIGUSR2) has_come = true;
  return has_come;
}

}  // namespace strata
