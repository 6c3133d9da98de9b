// Oracle: sequences of torch.amp.GradScaler and of DeepSpeed's DynamicLossScaler, worked out from
// their published laws.
#include "strata/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::optim {
namespace {

// The scale after each step; 'o' overflows, '.' is clean.
std::vector<double> scales(LossScaler& scaler, const std::string& steps) {
  std::vector<double> found;
  for (char step : steps) {
    scaler.update(step == 'o');
    found.push_back(scaler.scale());
  }
  return found;
}

TEST(LossScaler, FollowsGradScaler) {
  LossScaler scaler({.initial_scale = 8, .growth_interval = 3});
  EXPECT_EQ(scales(scaler, "...oo..o...."),
            (std::vector<double>{8, 8, 16, 8, 4, 4, 4, 2, 2, 2, 4, 4}));
  EXPECT_EQ(scaler.num_skipped(), 3);
  EXPECT_EQ(LossScaler({}).scale(), 65536);
}

TEST(LossScaler, FollowsDeepSpeedWithHysteresis) {
  const LossScalerOptions options{.initial_scale = 16, .growth_interval = 4, .hysteresis = 2};
  LossScaler scaler(options);
  EXPECT_EQ(scales(scaler, "ooo......"), (std::vector<double>{16, 8, 4, 4, 4, 4, 8, 8, 8}));
  EXPECT_EQ(scales(scaler, "oo"), (std::vector<double>{8, 4})) << "growth refills the hysteresis";
  LossScaler small({.initial_scale = 4, .hysteresis = 2, .min_scale = 1});
  EXPECT_EQ(scales(small, "ooo"), (std::vector<double>{4, 2, 1}));
  EXPECT_THROW(small.update(true), Error);
}

TEST(LossScaler, AFixedScaleStays) {
  LossScaler scaler({.fixed_scale = 128, .growth_interval = 1});
  EXPECT_EQ(scales(scaler, "..oo."), (std::vector<double>{128, 128, 128, 128, 128}));
  EXPECT_EQ(scaler.num_skipped(), 2);
}

TEST(LossScaler, EndlessOverflowEndsTheRun) {
  LossScaler scaler({});
  EXPECT_THROW(scales(scaler, std::string(40, 'o')), Error);
}

TEST(LossScaler, StateGoesOnWhereItStopped) {
  const LossScalerOptions options{.initial_scale = 64, .growth_interval = 3, .hysteresis = 2};
  LossScaler whole(options), first(options), second(options);
  scales(whole, "..o.");
  scales(first, "..o.");
  second.load(Json::parse(first.state().dump()));
  const std::string rest = "o..o...o";
  EXPECT_EQ(scales(second, rest), scales(whole, rest));
  EXPECT_EQ(second.num_skipped(), whole.num_skipped());
}

// The schedule counts steps that were not skipped: going back to earlier weights must not move it.
TEST(LossScaler, ReturningKeepsTheSkippedSteps) {
  LossScaler scaler({.initial_scale = 64});
  scales(scaler, ".");
  const Json earlier = scaler.state();
  scales(scaler, "oo.");
  scaler.return_to(earlier);
  EXPECT_EQ(scaler.scale(), 64);
  EXPECT_EQ(scaler.num_skipped(), 2);
}

}  // namespace
}  // namespace strata::optim
