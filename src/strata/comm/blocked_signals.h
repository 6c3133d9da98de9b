// Signals go to the thread that runs a rank, not to those beside it. Owns: a thread's signal mask.
#pragma once

#include <csignal>

#include "strata/base/status_page.h"

namespace strata::comm {

// While it lives, threads that the calling one starts get no signals, except for the question where
// they are and those of their own faults.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    for (int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigdelset(&all, fatal);
    ::sigdelset(&all, stack_trace_signal());
    ::pthread_sigmask(SIG_BLOCK, &all, &previous_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace strata::comm
