// Oracle: TRL's DPOTrainer, whose log-probabilities are sums in fp32; its KTOTrainer.
#include "strata/train/loop/figures.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strata::train {
namespace {

double accuracy_of(double chosen, double rejected) {
  nn::PairPreference pair;
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

nn::RatedPreference rated(bool is_desirable, double log_prob) {
  nn::RatedPreference answers;
  answers.reference = {-10};
  answers.are_desirable = {is_desirable};
  answers.documents = {{.log_prob = log_prob, .tokens = 4, .mean_logits = 2}};
  return answers;
}

// As KTOTrainer, which logs a figure of the batches that have one.
TEST(RatedFigures, AreMeansOfTheMicroStepsThatHaveThem) {
  MeanFigures means;
  means.add(figures_of({}, rated(true, -8)));
  means.add(figures_of({}, rated(true, -6)));
  means.add(figures_of({}, rated(false, -15)));
  MeanFigures again;
  again.load(Json::parse(means.state().dump()));
  for (const MeanFigures& each : {means, again}) {
    Json values = Json::object();
    each.write_to(values);
    EXPECT_DOUBLE_EQ(values.at("rewards/chosen").get<double>(), 0.1 * 3);
    EXPECT_DOUBLE_EQ(values.at("rewards/rejected").get<double>(), -0.5);
    EXPECT_DOUBLE_EQ(values.at("logits/rejected").get<double>(), 0.5);
    EXPECT_EQ(values.at("kl").get<double>(), 0);
    EXPECT_FALSE(values.contains("rewards/margins")) << "no batch has both";
  }
}

TEST(RatedFigures, AMarginIsTheDifferenceOfTwoMeans) {
  nn::RatedPreference answers = rated(true, -8);
  answers.reference = {-10, -10, -10};
  answers.are_desirable = {true, false, false};
  answers.documents.push_back({.log_prob = -11, .tokens = 1});
  answers.documents.push_back({.log_prob = -14, .tokens = 1});
  const Figures figures = figures_of({}, answers);
  const auto margin = std::ranges::find(figures, "rewards/margins", &Figure::name);
  EXPECT_DOUBLE_EQ(margin->mean(), 0.2 - -0.25);
  EXPECT_FALSE(margin->is_absent());
}

}  // namespace
}  // namespace strata::train
