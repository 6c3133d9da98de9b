// Oracle: factors printed by transformers' get_scheduler (10 steps, 2 of warm-up).
#include "strata/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

void expect_factors(const std::string& type, const Json& kwargs, const std::vector<double>& wanted,
                    int64_t first = 0) {
  ScheduleSettings settings;
  settings.type = type;
  settings.kwargs = kwargs;
  settings.warmup_steps = 2;
  settings.total_steps = 10;
  settings.learning_rate = 1e-3;
  const auto factor = make_schedule(settings);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(factor(first + static_cast<int64_t>(i)), wanted[i], 6e-7) << type << " step " << i;
  }
}

TEST(LrSchedule, MatchesTheReference) {
  const Json none = Json::object();
  expect_factors("linear", none, {0, .5, 1, .875, .75, .625, .5, .375, .25, .125, 0});
  expect_factors("cosine", none,
                 {0, .5, 1, .96194, .853553, .691342, .5, .308658, .146447, .03806, 0});
  expect_factors("cosine_with_restarts", {{"num_cycles", 2}},
                 {0, .5, 1, .853553, .5, .146447, 1, .853553, .5, .146447, 0});
  expect_factors("inverse_sqrt", none,
                 {0, .5, 1, .816497, .707107, .632456, .57735, .534522, .5, .471405, .447214});
  expect_factors("cosine_with_min_lr", {{"min_lr_rate", 0.1}},
                 {.965746, .868198, .722208, .55, .377792, .231802, .134254, .1}, 3);
  expect_factors("warmup_stable_decay", {{"num_decay_steps", 3}},
                 {0, .5, 1, 1, 1, 1, 1, 1, .75, .25, 0});
  expect_factors("constant", none, {1, 1, 1});
  expect_factors("constant_with_warmup", none, {0, .5, 1, 1});
}

TEST(LrSchedule, PolynomialEndsAtItsEnd) {
  expect_factors("polynomial", {{"lr_end", 1e-4}, {"power", 1.0}}, {.1, .1}, 10);
}

TEST(LrSchedule, WrongSettingsAreNamed) {
  ScheduleSettings settings;
  settings.type = "cosin";
  try {
    make_schedule(settings);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean \"cosine\""), std::string::npos) << e.what();
  }
  settings.type = "linear";
  settings.kwargs = {{"power", 2}};
  EXPECT_THROW(make_schedule(settings), ConfigError);
  settings.type = "warmup_stable_decay";
  settings.kwargs = Json::object();
  EXPECT_THROW(make_schedule(settings), ConfigError);
}

}  // namespace
}  // namespace strata::optim
