// Oracle: learning rates that DeepSpeed 0.19.8 gives to the updates 1, 2, 3, ... (golden vectors).
#include "strata/optim/deepspeed_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

struct Row {
  std::string type, kwargs;
  double learning_rate;
  std::vector<double> rates;
};

const std::vector<Row>& golden() {
  static const std::vector<Row> kRows = {
      {"WarmupLR", R"({"warmup_max_lr": 1, "warmup_num_steps": 4})", 1, {0, 0, .5, .792481, 1, 1}},
      {"WarmupLR",
       R"({"warmup_max_lr": 1, "warmup_num_steps": 4, "warmup_type": "linear"})",
       1,
       {0, 0, .25, .5, .75, 1}},
      {"WarmupLR", R"({"warmup_max_lr": 1, "warmup_num_steps": 1})", 1, {0, 0, 1, 1}},
      // Rates of the file, not factors of the optimizer's own.
      {"WarmupLR",
       R"({"warmup_min_lr": 0.2, "warmup_max_lr": 1, "warmup_num_steps": 4, "warmup_type": "linear"})",
       0.01,
       {.2, .2, .4, .6, .8, 1}},
      // "auto": the learning rate and the warm-up of the run (4).
      {"WarmupLR",
       R"({"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"})",
       1,
       {0, 0, .5, .792481, 1, 1}},
      {"WarmupDecayLR",
       R"({"warmup_max_lr": 1, "total_num_steps": 10, "warmup_num_steps": 4, "warmup_type": "linear"})",
       1,
       {0, 0, .25, .5, .75, 1, .833333, .666667, .5, .333333, .166667, 0, 0}},
      {"WarmupDecayLR",
       R"({"warmup_max_lr": "auto", "total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_type": "linear"})",
       1,
       {0, 0, .25, .5, .75, 1, .833333, .666667, .5, .333333, .166667, 0, 0}},
      {"WarmupCosineLR",
       R"({"total_num_steps": 10, "warmup_num_steps": 4, "warmup_type": "linear"})",
       1,
       {0, 0, .25, .5, .75, .933019, .750025, .50005, .250075, .0670806, .0001, .0001}},
      {"OneCycle",
       R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 4, "decay_step_size": 2,
           "decay_lr_rate": 0.5, "cycle_momentum": false})",
       1,
       {.1, .325, .55, .775, 1, .775, .55, .325, .1, .08, .0666667, .0571429}},
      // In stairs, of the second half as many as of the first unless it has its own.
      {"OneCycle",
       R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_first_stair_count": 2,
           "cycle_momentum": false})",
       1,
       {.1, .1, .55, .55, 1, .55, .55, .1, .1, .1}},
      {"OneCycle",
       R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_second_step_size": 6,
           "cycle_first_stair_count": 2, "cycle_second_stair_count": 3, "cycle_momentum": false})",
       1,
       {.1, .1, .55, .55, 1, .7, .7, .4, .4, .1, .1}},
      // Without a second half the rate falls where the peak would be.
      {"OneCycle",
       R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_second_step_size": 0,
           "decay_step_size": 2, "decay_lr_rate": 0.5, "cycle_momentum": false})",
       1,
       {.1, .325, .55, .775, .1, .08, .0666667, .0571429, .05}},
      {"OneCycle",
       R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_second_step_size": 0,
           "cycle_first_stair_count": 2, "cycle_momentum": false})",
       1,
       {.1, .1, .55, .55, .1, .1}},
      {"LRRangeTest",
       R"({"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 2})",
       1,
       {.1, .15, .2, .25, .3}},
      {"LRRangeTest",
       R"({"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 2, "lr_range_test_staircase": true})",
       1,
       {.1, .1, .2, .2, .3}},
  };
  return kRows;
}

ScheduleSettings settings_of(const Row& row) {
  return {.type = row.type,
          .kwargs = Json::parse(row.kwargs),
          .warmup_steps = 4,
          .total_steps = 10,
          .learning_rate = row.learning_rate};
}

TEST(DeepSpeedSchedule, GivesItsRates) {
  for (const Row& row : golden()) {
    SCOPED_TRACE(row.type + " " + row.kwargs);
    const auto factor = make_schedule(settings_of(row));
    for (size_t i = 0; i < row.rates.size(); ++i) {
      EXPECT_NEAR(row.learning_rate * factor(static_cast<int64_t>(i)), row.rates[i], 1e-6) << i;
    }
  }
}

TEST(DeepSpeedSchedule, WrongSettingsAreNamed) {
  const std::vector<std::pair<Row, std::string>> table = {
      {{"WarmupLR", R"({"warmup_num_steps": 0})", 1, {}}, "\"warmup_num_steps\" 0"},
      {{"WarmupLR", R"({"warmup_type": "cosine"})", 1, {}}, "expected log or linear"},
      {{"WarmupLR", R"({"cycle_min_lr": 1})", 1, {}}, "found \"cycle_min_lr\""},
      {{"WarmupDecayLR", "{}", 1, {}}, "\"total_num_steps\" missing"},
      {{"OneCycle", R"({"cycle_min_lr": 1})", 1, {}}, "\"cycle_max_lr\" missing"},
      {{"OneCycle", R"({"cycle_min_lr": 1, "cycle_max_lr": 2})", 1, {}}, "cycle_momentum"},
      {{"OneCycle",
        R"({"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_momentum": false, "cycle_first_step_size": 0})",
        1,
        {}},
       "\"cycle_first_step_size\" 0"},
      {{"OneCycle",
        R"({"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_momentum": false, "cycle_second_step_size": -1})",
        1,
        {}},
       "\"cycle_second_step_size\" -1"},
      {{"LRRangeTest", R"({"lr_range_test_step_size": 0})", 1, {}}, "more than 0"},
  };
  for (const auto& [row, message] : table) {
    try {
      make_schedule(settings_of(row));
      ADD_FAILURE() << row.kwargs;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace strata::optim
