// Oracle: the system's own account of signals that wait.
#include "strata/base/stop_request.h"

#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace strata {
namespace {

volatile sig_atomic_t answers = 0;

TEST(StopRequest, WaitsUntilItIsReleased) {
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  struct sigaction action = {};
  action.sa_handler = [](int) { answers = answers + 1; };
  struct sigaction previous;
  ::sigaction(SIGUSR1, &action, &previous);
  hold_stop_requests();
  ::kill(::getpid(), SIGUSR1);
  EXPECT_EQ(answers, 0);
  release_stop_requests();
  EXPECT_EQ(answers, 1);
  ::kill(::getpid(), SIGUSR1);
  EXPECT_EQ(answers, 2);
  ::sigaction(SIGUSR1, &previous, nullptr);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace strata
