// Oracle: finite differences; equation 7 of the KTO paper at points where it is known.
#include "strata/nn/rated_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "strata/base/error.h"

namespace strata::nn {
namespace {

RatedPreference answers_of(const std::string& loss) {
  RatedPreference answers;
  answers.options = {.beta = 0.3, .loss = loss, .desirable_weight = 0.8, .undesirable_weight = 1.6};
  answers.reference = {-40, -41, -12.5, -30};
  answers.are_desirable = {true, false, false, true};
  answers.divergence = 1.5;
  for (const double log_prob : {-38.0, -44.5, -11.0, -700.0}) {
    answers.documents.push_back({.log_prob = log_prob, .tokens = 9});
  }
  return answers;
}

TEST(RatedLoss, SlopesAreFiniteDifferences) {
  for (const char* loss : {"kto", "apo_zero_unpaired"}) {
    const RatedPreference answers = answers_of(loss);
    const DocumentSlopes found = rated_losses(answers);
    for (size_t d = 0; d < 4; ++d) {
      constexpr double kStep = 1e-5;
      RatedPreference more = answers, less = answers;
      more.documents[d].log_prob += kStep;
      less.documents[d].log_prob -= kStep;
      const double slope = (rated_losses(more).sum - rated_losses(less).sum) / (2 * kStep);
      EXPECT_NEAR(found.slopes[d], slope, 1e-8) << loss << ' ' << d;
      EXPECT_EQ(found.tail_slopes[d], 0);
    }
  }
}

TEST(RatedLoss, IsHalfOfTheWeightWhereTheModelIsItsReference) {
  RatedPreference answers = answers_of("kto");
  for (size_t d = 0; d < 4; ++d) answers.documents[d].log_prob = answers.reference[d];
  answers.divergence = 0;
  EXPECT_DOUBLE_EQ(rated_losses(answers).sum, 0.8 + 1.6);
  // A model that left its reference must have gained as much by the answer.
  answers.divergence = 2;
  const double gain = 1 / (1 + std::exp(0.6));
  EXPECT_DOUBLE_EQ(rated_losses(answers).sum, 2 * 0.8 * (1 - gain) + 2 * 1.6 * gain);
  answers.options.loss = "apo_zero_unpaired";
  EXPECT_DOUBLE_EQ(rated_losses(answers).sum, 0.8 + 1.6);
}

TEST(RatedLoss, OnlySumsWithoutAReference) {
  RatedPreference answers = answers_of("kto");
  EXPECT_TRUE(answers.losses().has_value());
  answers.reference.clear();
  EXPECT_FALSE(answers.losses().has_value());
  EXPECT_THROW(rated_losses(answers_of("sigmoid")), InternalError);
}

}  // namespace
}  // namespace strata::nn
