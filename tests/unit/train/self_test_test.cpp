// Oracle: the rules by hand; rows of two runs made up so that the differences are known.
#include "strata/train/self_test.h"

#include <limits>

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::train {
namespace {

config::RunConfig settings(int64_t batch, int64_t accumulation) {
  config::RunConfig config;
  config.train.per_device_train_batch_size = batch;
  config.train.gradient_accumulation_steps = accumulation;
  return config;
}

TEST(SelfTestLayouts, AllHoldTheSameRowsAndDifferInOneThing) {
  for (int world : {1, 2, 3, 8}) {
    for (int64_t batch : {1, 2, 3, 8}) {
      for (int64_t accumulation : {1, 2, 5}) {
        const auto layouts = self_test_layouts(settings(batch, accumulation), world);
        ASSERT_EQ(layouts.size(), 4u);
        const Layout& own = layouts[0];
        const int64_t rows = world * batch * accumulation;
        EXPECT_TRUE(own.rows_per_step() == rows || own.rows_per_step() == 2 * rows);
        for (const Layout& layout : layouts) {
          EXPECT_EQ(layout.rows_per_step(), own.rows_per_step());
          EXPECT_GE(layout.batch_size, 1);
        }
        EXPECT_NE(layouts[1].world_size, own.world_size);
        EXPECT_EQ(std::min(layouts[1].world_size, own.world_size), 1);
        EXPECT_NE(layouts[2].accumulation, own.accumulation);
        EXPECT_EQ(std::min(layouts[2].accumulation, own.accumulation), 1);
        EXPECT_NE(layouts[3].checkpointing, own.checkpointing);
      }
    }
  }
}

TEST(SelfTestLayouts, SettingsFollowAndForgetSizesOfAnotherWorld) {
  config::RunConfig config = settings(4, 1);
  config.lora.dropout = 0.3;
  config.shard.dp_shard_size = 2;
  config.train.save_strategy = config::Interval::kEpoch;
  const auto layouts = self_test_layouts(config, 4);
  const config::RunConfig own = self_test_settings(config, layouts[0], 4, "/o");
  EXPECT_EQ(own.shard.dp_shard_size, 2);
  EXPECT_EQ(own.lora.dropout, 0);
  EXPECT_EQ(own.train.save_strategy, config::Interval::kNo);
  EXPECT_EQ(own.train.output_dir, "/o");
  const config::RunConfig one = self_test_settings(config, layouts[1], 4, "/o");
  EXPECT_EQ(one.shard.dp_shard_size, 0);
  EXPECT_EQ(one.train.per_device_train_batch_size, 16);
}

// Those who share rows are one rank to the others.
TEST(SelfTestLayouts, OfSharedRowsHaveAsManyOnOneRank) {
  config::RunConfig config = settings(3, 2);
  config.shard.sequence_parallel_size = 2;
  const auto layouts = self_test_layouts(config, 4);
  EXPECT_EQ(layouts[0].rows_per_step(), 12);
  for (const Layout& layout : layouts) EXPECT_EQ(layout.rows_per_step(), 12);
  EXPECT_EQ(layouts[1].batch_size, 6);
  const config::RunConfig one = self_test_settings(config, layouts[1], 4, "/o");
  EXPECT_EQ(one.shard.sequence_parallel_size, 1);
  EXPECT_EQ(self_test_settings(config, layouts[0], 4, "/o").shard.sequence_parallel_size, 2);
}

// Answers stand behind the prompts of others of their micro-batch: layouts would give other losses.
TEST(SelfTestLayouts, TakeNoDivergence) {
  config::RunConfig config = settings(2, 1);
  config.recipe = "kto";
  const auto layouts = self_test_layouts(config, 1);
  ASSERT_EQ(layouts[1].batch_size, 1);
  for (const std::vector<std::string>& losses : {std::vector<std::string>{}, {"kto"}}) {
    config.preference.loss_type = losses;
    EXPECT_EQ(self_test_settings(config, layouts[1], 1, "/o").preference.loss_type,
              std::vector<std::string>{"apo_zero_unpaired"});
  }
  config.recipe = "dpo";
  config.preference.loss_type = {"ipo"};
  EXPECT_EQ(self_test_losses(config), config.preference.loss_type);
  config.preference.loss_type = {"aot", "sft", "aot_unpaired"};
  EXPECT_EQ(self_test_losses(config), (std::vector<std::string>{"sigmoid", "sft", "sigmoid"}));
}

Json row(int step, double loss, double norm, double epoch, int64_t tokens) {
  return Json{{"step", step},
              {"loss", loss},
              {"grad_norm", norm},
              {"epoch", epoch},
              {"num_tokens", tokens}};
}

TEST(SelfTestComparison, FindsTheLargestDifferences) {
  const std::vector<Json> a = {row(1, 4.0, 2.0, 0.3, 10), row(2, 0.5, 1.0, 0.6, 20)};
  const std::vector<Json> b = {row(1, 4.0004, 2.0, 0.3, 10), row(2, 0.50001, 0.99, 0.6, 20)};
  const Comparison found = compare_runs(a, b);
  EXPECT_EQ(found.steps, 2);
  EXPECT_NEAR(found.loss_difference, 1e-4, 1e-9);
  EXPECT_NEAR(found.norm_difference, 1e-2, 1e-9);
  EXPECT_TRUE(found.is_same({2e-4, 2e-2}));
  EXPECT_FALSE(found.is_same({2e-4, 1e-3}));
  EXPECT_FALSE(found.is_same({1e-5, 2e-2}));
}

TEST(SelfTestComparison, LeavesOutTheEndOfAnEpoch) {
  const std::vector<Json> a = {row(1, 4, 2, 0.5, 10), row(2, 3, 1, 1.0, 20)};
  const std::vector<Json> b = {row(1, 4, 2, 0.5, 10), row(2, 9, 1, 1.0, 22)};
  EXPECT_EQ(compare_runs(a, b).steps, 1);
  EXPECT_EQ(compare_runs(a, b).loss_difference, 0);
  EXPECT_THROW(compare_runs({a[1]}, {b[1]}), FormatError);
}

TEST(SelfTestComparison, OtherRowsAreAnError) {
  EXPECT_THROW(compare_runs({row(1, 4, 2, 0.5, 10)}, {row(1, 4, 2, 0.5, 11)}), FormatError);
}

TEST(SelfTestComparison, OverflowInOneRunAloneIsADifference) {
  const std::vector<Json> finite = {row(1, 4, 2, 0.5, 10)};
  std::vector<Json> overflow = finite;
  overflow[0]["grad_norm"] = nullptr;
  EXPECT_EQ(compare_runs(overflow, overflow).norm_difference, 0);
  EXPECT_EQ(compare_runs(finite, overflow).norm_difference,
            std::numeric_limits<double>::infinity());
  EXPECT_FALSE(compare_runs(finite, overflow).is_same({1, 1}));
}

}  // namespace
}  // namespace strata::train
