// Oracle: means and speeds computed by hand; of a run that goes on, the sums of one that was not
// broken off.
#include "strata/train/loop/step_sums.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

using std::chrono::seconds;

const StepSums::Clock::time_point kStart{};

std::vector<Figures> accuracy(double first, double second) {
  return {{{.name = "accuracy", .sum = first, .weight = 1}},
          {{.name = "accuracy", .sum = second, .weight = 1}}};
}

TEST(StepSums, ALogHasTheMeansSinceTheOneBefore) {
  StepSums sums;
  sums.start(kStart);
  EXPECT_FALSE(sums.has_unlogged());
  sums.add(4.0, accuracy(0.1, 0.3), 100);
  sums.add(2.0, accuracy(0.5, 0.7), 50);
  EXPECT_TRUE(sums.has_unlogged());
  EXPECT_EQ(
      sums.log(kStart + seconds(10), 1.5, 0.01).dump(),
      R"({"loss":3.0,"grad_norm":1.5,"learning_rate":0.01,"num_tokens":150.0,"accuracy":0.4})");
  EXPECT_FALSE(sums.has_unlogged());
  sums.add(1.0, accuracy(1, 1), 25);
  const Json second = sums.log(kStart + seconds(11), 2.5, 0.02);
  EXPECT_EQ(second.at("loss"), 1.0);
  EXPECT_EQ(second.at("accuracy"), 1.0);
  EXPECT_EQ(second.at("num_tokens"), 175.0) << "of the whole run";
}

TEST(StepSums, TheMeanOfTheRunIsOverItsSteps) {
  StepSums sums;
  EXPECT_EQ(sums.mean_loss(), 0);
  sums.add(4.0, {}, 1);
  sums.log(kStart, 0, 0);
  sums.add(1.0, {}, 1);
  sums.add(1.0, {}, 1);
  EXPECT_EQ(sums.mean_loss(), 2.0);
}

TEST(StepSums, SpeedIsOfTheTimeThatWasTrainings) {
  StepSums sums;
  sums.start(kStart);
  EXPECT_EQ(sums.logged_tokens_per_second(), 0);
  sums.add(1.0, {}, 600);
  EXPECT_EQ(sums.tokens_per_second(kStart + seconds(6)), 100);
  EXPECT_EQ(sums.logged_tokens_per_second(), 0) << "no log yet";
  sums.leave_out(seconds(4));  // an evaluation, a save
  EXPECT_EQ(sums.tokens_per_second(kStart + seconds(10)), 100);
  sums.log(kStart + seconds(10), 0, 0);
  EXPECT_EQ(sums.logged_tokens_per_second(), 100);
  sums.add(1.0, {}, 600);
  EXPECT_EQ(sums.tokens_per_second(kStart + seconds(12)), 300);
  EXPECT_EQ(sums.logged_tokens_per_second(), 100) << "until the next log";
}

// As a checkpoint keeps them.
Json kept(const StepSums& sums) {
  const Json progress{
      {"num_tokens", sums.num_tokens()}, {"log_window", sums.window()}, {"totals", sums.totals()}};
  return parse_json(dump_python(progress), "progress");
}

TEST(StepSums, ARunThatGoesOnLogsWhatOneWouldThatWasNotBrokenOff) {
  StepSums whole, first, damaged, second;
  for (StepSums* sums : {&whole, &first}) {
    sums->add(9.0, accuracy(0, 0), 10);
    sums->log(kStart, 0, 0);
    sums->add(4.0, accuracy(0.1, 0.3), 100);
  }
  for (int i = 0; i < 3; ++i) damaged.add(7.0, accuracy(1, 1), 1);
  second.go_on(kept(damaged));  // a checkpoint that cannot be used after all
  second.go_on(kept(first));
  EXPECT_TRUE(second.has_unlogged());
  for (StepSums* sums : {&whole, &second}) sums->add(1.0, accuracy(0.5, 0.7), 50);
  EXPECT_EQ(second.log(kStart, 1, 2), whole.log(kStart, 1, 2));
}

TEST(StepSums, TheMeanLossIsThatOfARunThatWasNotBrokenOff) {
  StepSums whole, sums, resumed;
  for (StepSums* of_both : {&whole, &sums}) {
    for (const double loss : {8.1, 0.3, 2.7}) of_both->add(loss, {}, 1);
  }
  resumed.go_on(kept(sums));
  EXPECT_EQ(resumed.mean_loss(), whole.mean_loss()) << "also where no step follows";
  for (StepSums* of_both : {&whole, &resumed}) of_both->add(2.2, {}, 1);
  EXPECT_EQ(resumed.mean_loss(), whole.mean_loss());
}

// As a converted checkpoint of another tool has it.
TEST(StepSums, WhatACheckpointDoesNotSayOfLossesIsLeftOutOfTheMean) {
  StepSums sums;
  sums.add(8.0, {}, 1);
  Json progress = kept(sums);
  progress.erase("totals");
  StepSums resumed;
  resumed.go_on(progress);
  resumed.add(2.0, {}, 1);
  EXPECT_EQ(resumed.mean_loss(), 2.0);
}

}  // namespace
}  // namespace strata::train
