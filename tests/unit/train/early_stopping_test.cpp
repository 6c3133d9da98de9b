// Oracle: tests/golden/early_stopping.json, what transformers' EarlyStoppingCallback said after
// each of the values (tests/parity/test_early_stopping.py writes it).
#include "strata/train/loop/early_stopping.h"

#include <gtest/gtest.h>

#include "strata/base/json.h"
#include "strata/train/loop/best_checkpoint.h"

namespace strata::train {
namespace {

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/early_stopping.json";

config::RunConfig config_of(const Json& row) {
  config::RunConfig config;
  config.train.metric_for_best_model = "loss";
  config.train.early_stopping_patience = row.at("patience").get<int64_t>();
  config.train.early_stopping_threshold = row.at("threshold").get<double>();
  config.train.greater_is_better = row.at("greater_is_better").get<bool>();
  return config;
}

TEST(EarlyStopping, CountsAsTheReference) {
  const Json table = read_json_file(kGolden);
  ASSERT_GT(table.size(), 50u);
  for (const Json& row : table) {
    SCOPED_TRACE(row.dump());
    const config::RunConfig config = config_of(row);
    BestCheckpoint best(config);
    EarlyStopping stopping(config.train);
    for (size_t i = 0; i < row.at("values").size(); ++i) {
      const double value = row.at("values").at(i).get<double>();
      const Json& expected = row.at("rows").at(i);
      stopping.judge(value, best.value());
      best.judge(value, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(stopping.counter(), expected.at(0).get<int64_t>()) << i;
      EXPECT_EQ(stopping.is_due(), expected.at(1).get<bool>()) << i;
      report::TrainerState state;
      best.fill(state);
      EXPECT_EQ(state.best_global_step.value_or(0), expected.at(2).get<int64_t>()) << i;
    }
  }
}

// Wherever a run is resumed it counts as if it had not been broken off.
TEST(EarlyStopping, GoesOnAfterLoading) {
  for (const Json& row : read_json_file(kGolden)) {
    SCOPED_TRACE(row.dump());
    const config::RunConfig config = config_of(row);
    report::TrainerState state;
    for (size_t i = 0; i < row.at("values").size(); ++i) {
      BestCheckpoint best(config);
      EarlyStopping stopping(config.train);
      best.load(state);
      stopping.load(state);
      const double value = row.at("values").at(i).get<double>();
      stopping.judge(value, best.value());
      best.judge(value, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(stopping.counter(), row.at("rows").at(i).at(0).get<int64_t>()) << i;
      best.fill(state);
      stopping.fill(state);
      state = report::parse_trainer_state(report::trainer_state_text(state), "state");
    }
  }
}

TEST(EarlyStopping, WithoutPatienceNothingIsCounted) {
  for (const std::optional<int64_t> patience :
       {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    config::TrainConfig config;
    config.early_stopping_patience = patience;
    EarlyStopping stopping(config);
    for (int i = 0; i < 3; ++i) stopping.judge(2.0, 1.0);
    EXPECT_FALSE(stopping.is_due());
    report::TrainerState state;
    stopping.fill(state);
    EXPECT_FALSE(state.early_stopping);
  }
}

}  // namespace
}  // namespace strata::train
