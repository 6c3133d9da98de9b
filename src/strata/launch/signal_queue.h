// The launcher's signals as a file descriptor to be polled: those that it passes on to the ranks
// (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2), and SIGCHLD. SIGINT and SIGHUP stay ignored where
// they were, as in a shell's background and under nohup. Never: decides what a signal means.
#pragma once

#include <csignal>

#include "strata/base/descriptor.h"

namespace strata::launch {

// While it lives the signals are blocked, and SIGPIPE is ignored: a reader of our output that goes
// away must not end the run. Threads: none may run beside the one that makes it.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return queue_.get(); }
  // 0: none is waiting.
  int next();

 private:
  sigset_t previous_;
  void (*previous_pipe_)(int) = SIG_DFL;
  Descriptor queue_;
};

}  // namespace strata::launch
