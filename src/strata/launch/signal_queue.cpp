#include "strata/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::launch {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// A descriptor delivers also what is ignored: a blocked signal is kept, whatever its action.
bool is_meant_for_others(int number) {
  if (number != SIGINT && number != SIGHUP) return false;
  struct sigaction action;
  return ::sigaction(number, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (int number : kPassedOn) {
    if (!is_meant_for_others(number)) ::sigaddset(&set, number);
  }
  ::sigprocmask(SIG_BLOCK, &set, &previous_);
  previous_pipe_ = ::signal(SIGPIPE, SIG_IGN);
  queue_ = Descriptor(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (queue_.get() < 0) throw IoError("signalfd: found {}, expected one", errno_text(errno));
}

SignalQueue::~SignalQueue() {
  ::signal(SIGPIPE, previous_pipe_);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info;
  return ::read(queue_.get(), &info, sizeof(info)) == sizeof(info)
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

}  // namespace strata::launch
