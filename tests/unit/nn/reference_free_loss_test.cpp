// Oracle: finite differences; equations 4 to 7 of the ORPO paper, 6 of SimPO's and 5 of CPO's at
// points where they are known.
#include "strata/nn/reference_free_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "strata/base/error.h"

namespace strata::nn {
namespace {

constexpr const char* kLosses[] = {"sigmoid", "hinge", "ipo", "simpo", "odds_ratio"};

ReferenceFreePreference pairs_of(const std::string& loss) {
  ReferenceFreePreference pairs;
  pairs.options = {.loss = loss,
                   .nll_weight = 0.7,
                   .beta = 0.3,
                   .label_smoothing = 0.1,
                   .simpo_gamma = 0.4,
                   .alpha = loss == "odds_ratio" ? 0 : 0.05};
  pairs.prompt_targets = {4, 0, 0, 0};
  pairs.pairs_per_chosen_token = 0.25;
  pairs.documents = {{.log_prob = -20, .tail = -12.5, .tokens = 9},
                     {.log_prob = -31, .tail = -31, .tokens = 7},
                     {.log_prob = -3, .tail = -3, .tokens = 30},
                     {.log_prob = -0.5, .tail = -0.5, .tokens = 4}};
  return pairs;
}

double sum_with(ReferenceFreePreference pairs, size_t document, double front, double tail) {
  pairs.documents[document].log_prob += front + tail;
  pairs.documents[document].tail += tail;
  return reference_free_losses(pairs).sum;
}

TEST(ReferenceFreeLoss, SlopesAreFiniteDifferences) {
  constexpr double kStep = 1e-5;
  for (const char* loss : kLosses) {
    const ReferenceFreePreference pairs = pairs_of(loss);
    const DocumentSlopes found = reference_free_losses(pairs);
    for (size_t d = 0; d < 4; ++d) {
      const double front = sum_with(pairs, d, kStep, 0) - sum_with(pairs, d, -kStep, 0);
      const double tail = sum_with(pairs, d, 0, kStep) - sum_with(pairs, d, 0, -kStep);
      EXPECT_NEAR(found.slopes[d], front / (2 * kStep), 1e-8) << loss << ' ' << d;
      EXPECT_NEAR(found.tail_slopes[d], tail / (2 * kStep), 1e-7) << loss << ' ' << d;
    }
  }
}

// Of one pair whose answers have the mean log-probabilities log 0.8 and log 0.5.
ReferenceFreePreference known_pair(const std::string& loss) {
  ReferenceFreePreference pair;
  pair.options = {.loss = loss, .nll_weight = 0, .beta = 2, .simpo_gamma = 0.3};
  pair.prompt_targets = {1, 0};
  pair.documents = {{.log_prob = 4 * std::log(0.8) - 1, .tail = 4 * std::log(0.8), .tokens = 5},
                    {.log_prob = 2 * std::log(0.5), .tail = 2 * std::log(0.5), .tokens = 2}};
  return pair;
}

double minus_log_sigmoid(double x) { return std::log1p(std::exp(-x)); }

TEST(ReferenceFreeLoss, IsThatOfThePapers) {
  // Odds of 4 and of 1.
  ReferenceFreePreference pair = known_pair("odds_ratio");
  EXPECT_NEAR(pair.log_odds(0), std::log(4.0), 1e-12);
  EXPECT_NEAR(pair.log_odds_ratio(0), std::log(0.8), 1e-12);
  EXPECT_NEAR(reference_free_losses(pair).sum, -2 * std::log(0.8), 1e-12);
  const double ratio = std::log(0.8 / 0.5);
  pair = known_pair("simpo");
  EXPECT_NEAR(reference_free_losses(pair).sum, minus_log_sigmoid(2 * ratio - 0.3), 1e-12);
  EXPECT_NEAR(pair.reward(0), 2 * std::log(0.8), 1e-12);
  EXPECT_NEAR(reference_free_losses(known_pair("ipo")).sum, std::pow(ratio - 0.25, 2), 1e-12);
  // Of whole answers.
  const double whole = 4 * std::log(0.8) - 2 * std::log(0.5);
  EXPECT_NEAR(reference_free_losses(known_pair("sigmoid")).sum, minus_log_sigmoid(2 * whole),
              1e-12);
  EXPECT_NEAR(reference_free_losses(known_pair("hinge")).sum, std::max(1 - 2 * whole, 0.0), 1e-12);
}

TEST(ReferenceFreeLoss, AddsTheLikelihoodOfPreferredDocuments) {
  ReferenceFreePreference pair = known_pair("odds_ratio");
  const double without = reference_free_losses(pair).sum;
  pair.options.nll_weight = 0.5;
  pair.pairs_per_chosen_token = 0.2;
  EXPECT_NEAR(reference_free_losses(pair).sum - without, -0.5 * 0.2 * (4 * std::log(0.8) - 1),
              1e-12);
}

TEST(ReferenceFreeLoss, HoldsAtTheEnds) {
  // Probabilities that are nearly 1 and nearly 0, whose exponentials over- and underflow.
  for (const char* loss : kLosses) {
    ReferenceFreePreference pairs = pairs_of(loss);
    pairs.options.alpha = 0;
    pairs.documents[0] = {.log_prob = -1e-12, .tail = -1e-12, .tokens = 9};
    pairs.documents[1] = {.log_prob = -9e4, .tail = -9e4, .tokens = 7};
    const DocumentSlopes found = reference_free_losses(pairs);
    EXPECT_TRUE(std::isfinite(found.sum)) << loss;
    for (size_t d = 0; d < 4; ++d) EXPECT_TRUE(std::isfinite(found.tail_slopes[d])) << loss;
  }
  // Answers that are certain, of which fp32 makes a log-probability of 0.
  for (const auto& [chosen, rejected] : {std::pair{0.0, -3.0}, {-3.0, 0.0}, {0.0, 0.0}}) {
    ReferenceFreePreference pair = known_pair("odds_ratio");
    pair.documents[0].tail = chosen;
    pair.documents[1].tail = pair.documents[1].log_prob = rejected;
    const DocumentSlopes found = reference_free_losses(pair);
    EXPECT_TRUE(std::isfinite(found.sum) && std::isfinite(pair.log_odds(0)));
    EXPECT_TRUE(std::isfinite(found.tail_slopes[0]) && std::isfinite(found.tail_slopes[1]));
  }
  EXPECT_THROW(reference_free_losses(pairs_of("kto")), InternalError);
}

TEST(ReferenceFreeLoss, AnswersAreTails) {
  EXPECT_EQ(pairs_of("ipo").tails({0, 9, 16, 46, 50}), (std::vector<int64_t>{4, 9, 16, 46}));
}

}  // namespace
}  // namespace strata::nn
