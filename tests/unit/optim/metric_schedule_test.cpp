// Oracle: learning rates printed by torch's ReduceLROnPlateau and transformers' GreedyLR for the
// same metrics.
#include "strata/optim/metric_schedule.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

const std::vector<double> kMetrics = {3,   2.9, 2.8,  2.7,  2.71, 2.72, 2.73, 2.74,
                                      2.6, 2.5, 2.51, 2.52, 2.53, 2.54, 2.55};

void expect_rates(const std::string& type, const Json& kwargs, const std::vector<double>& wanted) {
  MetricSchedule schedule(type, kwargs, 0.1);
  for (size_t i = 0; i < kMetrics.size(); ++i) {
    schedule.step(kMetrics[i]);
    EXPECT_NEAR(schedule.learning_rate(), wanted[i], 1e-9) << type << " step " << i;
    // A resumed run goes on as if never stopped.
    MetricSchedule resumed(type, kwargs, 0.1);
    resumed.load(parse_json(schedule.state().dump(), "state"));
    schedule = resumed;
  }
}

TEST(MetricSchedule, MatchesTheReference) {
  expect_rates(
      "reduce_lr_on_plateau", {{"patience", 1U}, {"factor", 0.5}, {"cooldown", 1U}},
      {0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125});
  expect_rates("greedy",
               {{"patience", 1U},
                {"factor", 0.5},
                {"cooldown", 1U},
                {"warmup", 1U},
                {"min_lr", 0.04},
                {"max_lr", 0.3},
                {"reset_start", 2U}},
               {0.1, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1});
  expect_rates(
      "greedy",
      {{"patience", 0U}, {"smooth", true}, {"window_size", 3U}, {"factor", 0.9}, {"min_lr", 0.01}},
      {0.111111111, 0.12345679, 0.137174211, 0.15241579, 0.169350878, 0.188167642, 0.169350878,
       0.15241579, 0.169350878, 0.188167642, 0.209075158, 0.232305731, 0.209075158, 0.188167642,
       0.169350878});
}

TEST(MetricSchedule, WrongSettingsAreNamed) {
  EXPECT_THROW(MetricSchedule("greedy", {{"patienc", 1}}, 0.1), ConfigError);
  EXPECT_THROW(MetricSchedule("reduce_lr_on_plateau", {{"warmup", 1U}}, 0.1), ConfigError);
  EXPECT_THROW(MetricSchedule("reduce_lr_on_plateau", {{"factor", 1.5}}, 0.1), ConfigError);
  EXPECT_THROW(MetricSchedule("reduce_lr_on_plateau", {{"mode", "least"}}, 0.1), ConfigError);
}

}  // namespace
}  // namespace strata::optim
