// Oracle: TRL's DPOTrainer, whose log-probabilities are sums in fp32.
#include "strata/train/loop/figures.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strata::train {
namespace {

double accuracy_of(double chosen, double rejected) {
  nn::Preference pair;
  pair.options.beta = 0.1;
  pair.reference = {-40, -60};
  pair.documents = {{.log_prob = -40 + chosen, .tokens = 8},
                    {.log_prob = -60 + rejected, .tokens = 9}};
  const Figures figures = figures_of({}, pair);
  return std::ranges::find(figures, "rewards/accuracies", &Figure::name)->mean();
}

TEST(PairFigures, NoiseOfTheReferenceIsNoPreference) {
  EXPECT_EQ(accuracy_of(0, 0), 0);
  EXPECT_EQ(accuracy_of(5e-7, 0), 0);
  EXPECT_EQ(accuracy_of(0, -5e-7), 0);
  EXPECT_EQ(accuracy_of(1e-5, 0), 1);
  EXPECT_EQ(accuracy_of(0, -1e-5), 1);
  EXPECT_EQ(accuracy_of(-1e-5, 0), 0);
}

}  // namespace
}  // namespace strata::train
