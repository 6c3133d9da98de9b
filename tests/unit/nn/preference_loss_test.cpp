// Oracle: finite differences; sorted numbers by hand; the same loss without weights.
#include "strata/nn/preference_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace strata::nn {
namespace {

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

// Four pairs whose order by margin is not that of the reference's.
PairPreference pairs_of(const std::string& loss, bool has_tails = false) {
  PairPreference pairs;
  pairs.options = {.beta = 0.3, .losses = {loss}, .label_smoothing = 0.1};
  if (has_tails) pairs.options.ld_alpha = 0.4;
  pairs.reference = {-40, -41, -12.5, -30, -22, -19, -35, -36};
  for (const double log_prob : {-38.0, -44.5, -14.2, -29.0, -20.5, -23.0, -36.5, -35.5}) {
    pairs.documents.push_back({.log_prob = log_prob,
                               .tail = has_tails ? log_prob / 4 : 0,
                               .tokens = 9,
                               .log_squares = log_prob - 3});
    pairs.answer_tokens.push_back(10);
  }
  return pairs;
}

TEST(PreferenceLoss, SlopesAreFiniteDifferences) {
  for (const char* loss : {"bco_pair", "aot", "aot_unpaired", "sigmoid"}) {
    for (const bool has_tails : {false, true}) {
      const PairPreference pairs = pairs_of(loss, has_tails);
      const DocumentSlopes found = pair_losses(pairs);
      for (size_t d = 0; d < pairs.documents.size(); ++d) {
        constexpr double kStep = 1e-5;
        const auto slope = [&](bool of_tail) {
          double sums[2];
          for (const int sign : {1, -1}) {
            PairPreference moved = pairs;
            moved.documents[d].log_prob += sign * kStep;
            if (of_tail) moved.documents[d].tail += sign * kStep;
            sums[sign == 1 ? 0 : 1] = pair_losses(moved).sum;
          }
          return (sums[0] - sums[1]) / (2 * kStep);
        };
        EXPECT_NEAR(found.slopes[d], slope(/*of_tail=*/false), 1e-8) << loss << ' ' << d;
        EXPECT_NEAR(found.tail_slopes[d], slope(/*of_tail=*/true), 1e-8) << loss << ' ' << d;
      }
    }
  }
}

// Margins of the model and of the reference, each in their order.
TEST(PreferenceLoss, MarginsAreComparedInOrder) {
  const PairPreference pairs = pairs_of("aot");
  std::array<double, 4> model, reference;
  for (size_t i = 0; i < 4; ++i) {
    model[i] = pairs.documents[2 * i].log_prob - pairs.documents[2 * i + 1].log_prob;
    reference[i] = pairs.reference[2 * i] - pairs.reference[2 * i + 1];
  }
  std::ranges::sort(model);
  std::ranges::sort(reference);
  double expected = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double x = 0.3 * (model[i] - reference[i]);
    expected -= 0.9 * log_sigmoid(x) + 0.1 * log_sigmoid(-x);
  }
  EXPECT_NEAR(pair_losses(pairs).sum, expected, 1e-12);
}

// Two equal pairs: which of them is the first one matters to neither.
TEST(PreferenceLoss, EqualMarginsHaveASlopeEach) {
  PairPreference pairs = pairs_of("aot_unpaired");
  for (size_t d = 0; d < 2; ++d) {
    pairs.documents[d + 2] = pairs.documents[d];
    pairs.reference[d + 2] = pairs.reference[d];
  }
  const DocumentSlopes found = pair_losses(pairs);
  for (const double slope : found.slopes) {
    EXPECT_TRUE(std::isfinite(slope));
    EXPECT_NE(slope, 0);
  }
}

TEST(PreferenceLoss, WeightsScaleThePairsAndAreNotLearnt) {
  for (const char* loss : {"sigmoid", "bco_pair", "ipo"}) {
    PairPreference pairs = pairs_of(loss, /*has_tails=*/true);
    std::vector<double> weights;
    for (size_t d = 0; d < 8; d += 2) {
      pairs.documents[d].tokens = static_cast<int64_t>(3 + d);
      pairs.documents[d].log_squares -= static_cast<double>(d);
      double log_weight = 0;
      for (size_t i = d; i < d + 2; ++i) {
        const DocumentSums& document = pairs.documents[i];
        log_weight +=
            (document.log_prob - document.log_squares) / static_cast<double>(document.tokens);
      }
      weights.push_back(std::exp(log_weight));
    }
    const DocumentSlopes plain = pair_losses(pairs);
    pairs.options.weighs_pairs = true;
    const DocumentSlopes found = pair_losses(pairs);
    for (size_t d = 0; d < 8; ++d) {
      EXPECT_NEAR(found.slopes[d], weights[d / 2] * plain.slopes[d], 1e-12) << loss;
      EXPECT_NEAR(found.tail_slopes[d], weights[d / 2] * plain.tail_slopes[d], 1e-12) << loss;
    }
    EXPECT_NE(found.sum, plain.sum);
  }
}

}  // namespace
}  // namespace strata::nn
