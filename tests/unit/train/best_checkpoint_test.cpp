// Oracle: the rule that the best checkpoint is one that exists: a save that failed gives its place
// back to the one before.
#include "strata/train/loop/best_checkpoint.h"

#include <gtest/gtest.h>

namespace strata::train {
namespace {

class BestCheckpointTest : public ::testing::Test {
 protected:
  BestCheckpointTest() {
    config_.train.output_dir = "/nowhere/out";
    config_.train.save_strategy = config::Interval::kSteps;
    config_.train.metric_for_best_model = "loss";
  }

  report::TrainerState state_of(const BestCheckpoint& best) {
    report::TrainerState state;
    best.fill(state);
    return state;
  }

  config::RunConfig config_;
};

TEST_F(BestCheckpointTest, AFailedSaveLeavesTheOneBefore) {
  BestCheckpoint best(config_);
  ASSERT_TRUE(best.judge(2.0, 10));
  best.note_save(10);
  ASSERT_TRUE(best.judge(1.0, 20));
  best.note_save(20);
  EXPECT_EQ(best.folder(), "/nowhere/out/checkpoint-20");
  best.note_failure(20);
  EXPECT_EQ(best.folder(), "/nowhere/out/checkpoint-10");
  EXPECT_EQ(state_of(best).best_metric, 2.0);
  EXPECT_EQ(state_of(best).best_global_step, 10);
  // What is better than the one that exists is the best one again.
  EXPECT_TRUE(best.judge(1.5, 30));
  best.note_save(30);
  EXPECT_EQ(best.folder(), "/nowhere/out/checkpoint-30");
}

TEST_F(BestCheckpointTest, ABestOneThatCouldNotBeSavedIsKnown) {
  BestCheckpoint best(config_);
  ASSERT_TRUE(best.judge(2.0, 10));
  best.note_save(10);
  ASSERT_TRUE(best.judge(1.0, 20));
  best.note_save(20);
  EXPECT_EQ(best.unsaved_value(20), std::nullopt);
  best.note_failure(20);
  EXPECT_EQ(best.unsaved_value(20), 1.0);
  EXPECT_EQ(best.unsaved_value(10), std::nullopt);
  // Not the best by then.
  EXPECT_FALSE(best.judge(3.0, 30));
  best.note_save(30);
  best.note_failure(30);
  EXPECT_EQ(best.unsaved_value(30), std::nullopt);
}

TEST_F(BestCheckpointTest, FailuresOfOtherSavesChangeNothing) {
  BestCheckpoint best(config_);
  ASSERT_TRUE(best.judge(2.0, 10));
  best.note_save(10);
  EXPECT_FALSE(best.judge(3.0, 20));
  best.note_save(20);
  best.note_failure(20);
  EXPECT_EQ(best.folder(), "/nowhere/out/checkpoint-10");
}

TEST_F(BestCheckpointTest, AnEvaluationThatIsMadeUpForNamesTheSaveBeforeIt) {
  BestCheckpoint best(config_);
  ASSERT_TRUE(best.judge(2.0, 10));
  best.note_save(20, /*is_best_there=*/false);
  EXPECT_EQ(best.folder(), std::nullopt);
  best.note_save(20, /*is_best_there=*/true);
  EXPECT_EQ(best.folder(), "/nowhere/out/checkpoint-10");
}

TEST_F(BestCheckpointTest, ABetterValueSinceThenKeepsItsPlace) {
  BestCheckpoint best(config_);
  ASSERT_TRUE(best.judge(2.0, 10));
  best.note_save(10);
  ASSERT_TRUE(best.judge(1.0, 15));
  best.note_failure(10);
  EXPECT_EQ(best.folder(), std::nullopt);
  EXPECT_EQ(state_of(best).best_metric, 1.0);
}

}  // namespace
}  // namespace strata::train
