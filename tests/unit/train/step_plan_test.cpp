// Oracle: a plain walk over epochs and batches, the way the reference's training loop runs.
#include "strata/train/loop/step_plan.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace strata::train {
namespace {

using config::Interval;

config::TrainConfig settings(double epochs, int64_t max_steps, int64_t accumulation) {
  config::TrainConfig config;
  config.num_train_epochs = epochs;
  config.max_steps = max_steps;
  config.gradient_accumulation_steps = accumulation;
  return config;
}

struct Walked {
  int64_t epoch, first, count;
  double epoch_after;
  bool ends_epoch;
};

// Every update of the run: batches are taken until `accumulation` are there or the epoch ends.
std::vector<Walked> walk(int64_t batches, int64_t accumulation, int64_t max_steps) {
  std::vector<Walked> steps;
  for (int64_t epoch = 0; static_cast<int64_t>(steps.size()) < max_steps; ++epoch) {
    for (int64_t at = 0; at < batches && static_cast<int64_t>(steps.size()) < max_steps;) {
      const int64_t count = std::min(accumulation, batches - at);
      at += count;
      steps.push_back(
          {epoch, at - count, count,
           static_cast<double>(epoch) + static_cast<double>(at) / static_cast<double>(batches),
           at == batches});
    }
  }
  return steps;
}

TEST(StepPlan, WindowsAreThoseOfAPlainWalk) {
  for (int64_t batches : {1, 2, 5, 7, 12}) {
    for (int64_t accumulation : {1, 2, 3, 4, 20}) {
      const StepPlan plan = plan_steps(settings(3, 17, accumulation), batches);
      ASSERT_EQ(plan.max_steps, 17);
      const std::vector<Walked> steps = walk(batches, accumulation, 17);
      for (int64_t step = 0; step < 17; ++step) {
        const Walked& wanted = steps[static_cast<size_t>(step)];
        const StepPlan::Window window = plan.window(step);
        EXPECT_EQ(window.epoch, wanted.epoch);
        EXPECT_EQ(window.first, wanted.first);
        EXPECT_EQ(window.count, wanted.count);
        EXPECT_DOUBLE_EQ(plan.epoch_after(step + 1), wanted.epoch_after);
        EXPECT_EQ(plan.ends_epoch(step + 1), wanted.ends_epoch);
      }
    }
  }
}

TEST(StepPlan, EpochsMayBeFractions) {
  const StepPlan half = plan_steps(settings(0.5, -1, 1), 5);
  EXPECT_EQ(half.max_steps, 3);  // ceil(2.5)
  EXPECT_EQ(half.num_epochs, 1);
  const StepPlan more = plan_steps(settings(2.25, -1, 2), 7);  // 4 updates an epoch
  EXPECT_EQ(more.max_steps, 9);
  EXPECT_EQ(more.num_epochs, 3);
}

TEST(StepPlan, MaxStepsDecidesAndMayGoBeyondTheEpochs) {
  const StepPlan plan = plan_steps(settings(1, 11, 2), 7);
  EXPECT_EQ(plan.max_steps, 11);
  EXPECT_EQ(plan.num_epochs, 3);  // 4 updates an epoch
}

TEST(StepPlan, IntervalsBelowOneAreFractionsOfAllSteps) {
  config::TrainConfig config = settings(3, 15, 1);
  config.logging_steps = 0.1;
  config.eval_steps = 0.5;
  config.save_steps = 4;
  const StepPlan plan = plan_steps(config, 100);
  EXPECT_EQ(plan.logging_steps, 2);
  EXPECT_EQ(plan.eval_steps, 8);
  EXPECT_EQ(plan.save_steps, 4);
  config.eval_steps.reset();
  EXPECT_EQ(plan_steps(config, 100).eval_steps, 2);  // as logging_steps
}

std::vector<int64_t> due(bool (*is_due)(const StepPlan&, const config::TrainConfig&, int64_t),
                         const config::TrainConfig& config, int64_t batches) {
  const StepPlan plan = plan_steps(config, batches);
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= plan.max_steps; ++step) {
    if (is_due(plan, config, step)) steps.push_back(step);
  }
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(StepPlan, TheLastStepEvaluatesAndSavesButDoesNotLog) {
  config::TrainConfig config = settings(3, 10, 1);
  config.logging_steps = 4;
  config.eval_strategy = Interval::kSteps;
  config.save_steps = 3;
  EXPECT_EQ(due(should_log, config, 6), (Steps{4, 8}));
  EXPECT_EQ(due(should_evaluate, config, 6), (Steps{4, 8, 10}));
  EXPECT_EQ(due(should_save, config, 6), (Steps{3, 6, 9, 10}));
  config.logging_first_step = true;
  EXPECT_EQ(due(should_log, config, 6), (Steps{1, 4, 8}));
}

TEST(StepPlan, EpochsEndWithTheirLastStepAndWithTheRun) {
  config::TrainConfig config = settings(3, 10, 2);  // 4 updates an epoch
  config.logging_strategy = config.eval_strategy = config.save_strategy = Interval::kEpoch;
  for (const auto is_due : {should_log, should_evaluate, should_save}) {
    EXPECT_EQ(due(is_due, config, 7), (Steps{4, 8, 10}));
  }
  config.logging_strategy = config.eval_strategy = config.save_strategy = Interval::kNo;
  for (const auto is_due : {should_log, should_evaluate, should_save}) {
    EXPECT_EQ(due(is_due, config, 7), Steps{});
  }
}

TEST(StepPlan, EvaluationsAtTheEndAreOne) {
  config::TrainConfig config = settings(3, 10, 2);
  config.eval_strategy = Interval::kEnd;
  EXPECT_EQ(due(should_evaluate, config, 7), Steps{10});
  config.save_strategy = Interval::kBest;
  const StepPlan plan = plan_steps(config, 7);
  EXPECT_EQ(count_saves(plan, config, 0), 1);
  EXPECT_EQ(count_saves(plan, config, 10), 0);
}

TEST(StepPlan, SavesAreCountedAsTheyComeDue) {
  for (const Interval strategy : {Interval::kSteps, Interval::kEpoch, Interval::kNo}) {
    for (int64_t interval = 1; interval < 12; ++interval) {
      config::TrainConfig config = settings(3, 10, 2);
      config.save_strategy = strategy;
      config.save_steps = static_cast<double>(interval);
      const StepPlan plan = plan_steps(config, 7);
      for (int64_t done = 0; done <= plan.max_steps + 1; ++done) {
        int64_t expected = 0;
        for (int64_t step = done + 1; step <= plan.max_steps; ++step) {
          expected += should_save(plan, config, step) ? 1 : 0;
        }
        EXPECT_EQ(count_saves(plan, config, done), expected)
            << fmt::format("{} {} {}", strategy, interval, done);
      }
    }
  }
}

// By DefaultFlowCallback's conditions: eval_delay <= global_step, or <= epoch.
TEST(StepPlan, EvaluationsMayBeginLater) {
  config::TrainConfig config = settings(3, -1, 1);
  const auto evaluations = [&] {
    const StepPlan plan = plan_steps(config, /*batches_per_epoch=*/4);
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= plan.max_steps; ++step) {
      if (should_evaluate(plan, config, step)) steps.push_back(step);
    }
    return steps;
  };
  using Steps = std::vector<int64_t>;
  config.eval_strategy = Interval::kSteps;
  config.eval_steps = 3;
  EXPECT_EQ(evaluations(), (Steps{3, 6, 9, 12}));
  config.eval_delay = 6;
  EXPECT_EQ(evaluations(), (Steps{6, 9, 12}));
  config.eval_delay = 6.5;
  EXPECT_EQ(evaluations(), (Steps{9, 12}));
  config.eval_strategy = Interval::kEpoch;
  config.eval_delay = 2;
  EXPECT_EQ(evaluations(), (Steps{8, 12}));
  config.eval_delay = 99;
  EXPECT_EQ(evaluations(), Steps{});
}

}  // namespace
}  // namespace strata::train
