// Oracle: sums by hand.
#include "strata/report/step_time.h"

#include <thread>

#include <gtest/gtest.h>

namespace strata::report {
namespace {

ActivitySeconds works(double products, double collectives) {
  ActivitySeconds seconds{};
  seconds[static_cast<size_t>(Activity::kMatrixProducts)] = products;
  seconds[static_cast<size_t>(Activity::kCollectives)] = collectives;
  return seconds;
}

TEST(StepTime, SaysTheSharesMostFirst) {
  StepTime time;
  EXPECT_EQ(time.line(), "");
  time.add(1.0, works(0.5, 0.25));
  time.add(3.0, works(2.5, 0.75));
  EXPECT_EQ(time.line(), "2 s a step: matrix products 75.0 %, collectives 25.0 %");
  EXPECT_EQ(time.values().at("matrix products").get<double>(), 1.5);
  EXPECT_EQ(time.values().at("other").get<double>(), 0);
  EXPECT_EQ(time.values().at("total").get<double>(), 2);
}

TEST(StepTime, WhatNoTimerCoversIsOther) {
  StepTime time;
  time.add(1.0, works(0.5, 0.0));
  EXPECT_EQ(time.line(), "1 s a step: matrix products 50.0 %, other 50.0 %");
}

TEST(StepTime, NoTimeHasNoShares) {
  StepTime time;
  time.add(0.0, works(0.0, 0.0));
  EXPECT_EQ(time.line(), "0 s a step: ");
}

TEST(StepTime, APauseIsNoPartOfTheStep) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause(50);
  StepTime time;
  const Clock::time_point start = Clock::now();
  {
    const StepTime::Scope step(time);
    const StepTime::Pause pause(time);
    std::this_thread::sleep_for(kPause);
  }
  const std::chrono::duration<double> without = Clock::now() - start - kPause;
  EXPECT_LE(time.values().at("total").get<double>(), without.count());
  EXPECT_NE(time.line().find(" s a step: "), std::string::npos);
}

}  // namespace
}  // namespace strata::report
