// Oracle: means computed by hand.
#include "strata/train/loop/loss_guard.h"

#include <limits>

#include <gtest/gtest.h>

namespace strata::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossGuard, WhatIsNotFiniteIsBad) {
  LossGuard guard(0);
  EXPECT_FALSE(guard.judge(2.5, 1.0));
  EXPECT_NE(guard.judge(kNan, 1.0)->find("a loss of nan"), std::string::npos);
  EXPECT_EQ(guard.judge(-kNan, 1.0), "a loss of nan, expected a finite one");
  EXPECT_NE(guard.judge(2.5, kInfinity)->find("a gradient norm of inf"), std::string::npos);
  EXPECT_EQ(guard.num_in_a_row(), 3);
  EXPECT_FALSE(guard.judge(1e9, 1.0)) << "without a bound no finite loss is a spike";
  EXPECT_EQ(guard.num_in_a_row(), 0);
}

TEST(LossGuard, ASpikeIsMeasuredAgainstTheMeanOfGoodLosses) {
  LossGuard guard(2);
  for (double loss : {1.0, 9.0, 1.0, 2.0, 2.0}) EXPECT_FALSE(guard.judge(loss, 1)) << loss;
  // The mean is 3 now.
  EXPECT_TRUE(guard.judge(6.1, 1));
  EXPECT_TRUE(guard.judge(6.1, 1)) << "a bad loss must not raise the mean";
  EXPECT_FALSE(guard.judge(5.9, 1));
}

// As of robust preferences, which fall below 0 as they are learnt.
TEST(LossGuard, LossesMayBeNegative) {
  LossGuard guard(3);
  for (double loss : {0.6, 0.2, -0.2, -0.6, -1.0, -1.4, -2.0, 0.1}) {
    EXPECT_FALSE(guard.judge(loss, 1)) << loss;
  }
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(guard.judge(-2, 1));
  EXPECT_NE(guard.judge(30, 1)->find(" with a running mean of -"), std::string::npos);
  EXPECT_TRUE(guard.judge(2.6, 1));
  EXPECT_FALSE(guard.judge(1.4, 1));
}

TEST(LossGuard, GoesOnAfterLoading) {
  LossGuard guard(2);
  for (int i = 0; i < 30; ++i) guard.judge(1 + i % 3, 1);
  guard.judge(kNan, 1);
  LossGuard other(2);
  other.load(guard.state());
  EXPECT_EQ(other.num_in_a_row(), 1);
  EXPECT_EQ(other.state(), guard.state());
}

}  // namespace
}  // namespace strata::train
