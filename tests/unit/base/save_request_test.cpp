// Oracle: the system's own account of signals that wait.
#include "strata/base/save_request.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

#include <gtest/gtest.h>

namespace strata {
namespace {

TEST(SaveRequest, WaitsUntilItIsTakenAndIsTakenOnce) {
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  EXPECT_FALSE(take_save_request());  // of a program that does not hold them, too
  hold_save_requests();
  EXPECT_FALSE(take_save_request());
  ::kill(::getpid(), SIGUSR2);
  ::kill(::getpid(), SIGUSR2);
  ::raise(SIGUSR2);  // to this thread alone
  EXPECT_TRUE(take_save_request());
  EXPECT_FALSE(take_save_request());
  // It ends no thread that was started since, nor is it lost with one.
  std::thread other([] { ::kill(::getpid(), SIGUSR2); });
  other.join();
  EXPECT_TRUE(take_save_request());
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace strata
