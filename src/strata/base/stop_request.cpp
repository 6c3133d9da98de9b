#include "strata/base/stop_request.h"

#include <csignal>

namespace strata {
namespace {

void change_mask(int how) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  ::sigprocmask(how, &set, nullptr);
}

}  // namespace

void hold_stop_requests() { change_mask(SIG_BLOCK); }

void release_stop_requests() { change_mask(SIG_UNBLOCK); }

}  // namespace strata
