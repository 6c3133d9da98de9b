// Oracle: accuracy and F1 counted by hand, as scikit-learn defines them; scikit-learn's
// matthews_corrcoef and scipy's pearsonr and spearmanr of the same values; the tally of all
// documents at once for those of parts.
#include "strata/train/loop/label_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace strata::train {
namespace {

double value_of(const Figures& figures, const char* name) {
  return std::ranges::find(figures, name, &Figure::name)->mean();
}

const LabelFigures kOfClasses{.names = {"accuracy", "f1"}};

// Four documents of three classes: told 0, 1, 1, 2; the fourth class is nobody's.
nn::DocumentTask classes() {
  return {.loss = nn::DocumentLoss::kClasses,
          .rows = {0, 1, 2, 3},
          .targets = {0, 1, 0, 2},
          .values = {3, 1, 2, 0, 0, 5, 1, 0, 1, 2, 1, 0, 0, 0, 9, 1}};
}

TEST(LabelFigures, OfClassesAreThoseOfAllRows) {
  const Figures figures =
      label_figures(nn::DocumentLoss::kClasses, tally_of(classes()), kOfClasses);
  EXPECT_DOUBLE_EQ(value_of(figures, "accuracy"), 0.75);
  // 2/3 of class 0 (one of two found), 2/3 of class 1 (one of two told), 1 of class 2.
  EXPECT_DOUBLE_EQ(value_of(figures, "f1"), (2.0 / 3 + 2.0 / 3 + 1) / 3);
}

TEST(LabelFigures, LeaveOutRowsThatOnlyFillABatch) {
  nn::DocumentTask task = classes();
  task.num_counted = 2;
  EXPECT_EQ(num_counted(task), 2);
  EXPECT_DOUBLE_EQ(value_of(label_figures(task.loss, tally_of(task), kOfClasses), "accuracy"), 1);
  task.num_counted = 0;
  EXPECT_DOUBLE_EQ(value_of(label_figures(task.loss, tally_of(task), kOfClasses), "accuracy"), 0);
}

TEST(LabelFigures, TalliesOfPartsAddUp) {
  const std::vector<double> whole = tally_of(classes());
  std::vector<double> sum(whole.size(), 0.0);
  for (size_t begin : {0, 2}) {
    nn::DocumentTask part = classes();
    part.rows.resize(2);
    part.targets = {part.targets.begin() + static_cast<ptrdiff_t>(begin),
                    part.targets.begin() + static_cast<ptrdiff_t>(begin + 2)};
    part.values = {part.values.begin() + static_cast<ptrdiff_t>(4 * begin),
                   part.values.begin() + static_cast<ptrdiff_t>(4 * begin + 8)};
    const std::vector<double> tally = tally_of(part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += tally[i];
  }
  EXPECT_EQ(sum, whole);
}

TEST(LabelFigures, OfSeveralLabelsAndOfNumbers) {
  const nn::DocumentTask labels{.loss = nn::DocumentLoss::kLabels,
                                .rows = {0, 1},
                                .targets = {1, 0, 1, 1},
                                .values = {2, 1, -1, 3}};
  // Two of three are told, and one that is not there.
  EXPECT_DOUBLE_EQ(value_of(label_figures(labels.loss, tally_of(labels), {.names = {"f1"}}), "f1"),
                   4.0 / 6);
  const nn::DocumentTask numbers{
      .loss = nn::DocumentLoss::kNumbers, .rows = {0, 1}, .targets = {1, 2}, .values = {1.5, 4}};
  EXPECT_DOUBLE_EQ(
      value_of(label_figures(numbers.loss, tally_of(numbers), {.names = {"mse"}}), "mse"),
      4.25 / 2);
}

TEST(LabelFigures, OfATaskAreThoseOfGlue) {
  const LabelFigures names{.names = {"accuracy", "f1", "combined_score", "matthews_correlation"},
                           .is_of_class_1 = true};
  const Figures figures = label_figures(nn::DocumentLoss::kClasses, tally_of(classes()), names);
  EXPECT_DOUBLE_EQ(value_of(figures, "f1"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(value_of(figures, "combined_score"), (0.75 + 2.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(value_of(figures, "matthews_correlation"), 7.0 / 10);
  nn::DocumentTask one = classes();
  one.num_counted = 1;
  EXPECT_DOUBLE_EQ(value_of(label_figures(one.loss, tally_of(one), names), "matthews_correlation"),
                   0);
}

TEST(LabelFigures, CorrelationsAreOfAllValuesAtTheirPlaces) {
  const LabelFigures names{.names = {"pearson", "spearmanr", "combined_score"}};
  EXPECT_TRUE(names.are_placed());
  EXPECT_FALSE(kOfClasses.are_placed());
  const nn::DocumentTask first{
      .loss = nn::DocumentLoss::kNumbers, .rows = {0, 1}, .targets = {1, 2}, .values = {0.5, 4}};
  // Its last row is that of the other once more, which only fills the batch.
  const nn::DocumentTask second{.loss = nn::DocumentLoss::kNumbers,
                                .rows = {0, 1, 2},
                                .targets = {2, 5, 1},
                                .num_counted = 2,
                                .values = {3, 3, 0.5}};
  std::vector<double> sum = placed_tally_of(first, std::vector<int64_t>{3, 0}, 4);
  const std::vector<double> tally = placed_tally_of(second, std::vector<int64_t>{1, 2, 3}, 4);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += tally[i];
  const Figures figures = label_figures(first.loss, sum, names);
  EXPECT_NEAR(value_of(figures, "pearson"), 0.41891914525312085, 1e-14);
  EXPECT_NEAR(value_of(figures, "spearmanr"), 0.5000000000000001, 1e-14);
  EXPECT_DOUBLE_EQ(value_of(figures, "combined_score"),
                   (value_of(figures, "pearson") + value_of(figures, "spearmanr")) / 2);
  const std::vector<double> same(8, 1.0), none(8, std::nan(""));
  EXPECT_DOUBLE_EQ(value_of(label_figures(first.loss, same, names), "pearson"), 0);
  EXPECT_DOUBLE_EQ(value_of(label_figures(first.loss, none, names), "spearmanr"), 0);
}

TEST(LabelFigures, OfAStepAreRatiosOfSums) {
  const Figures figures = label_figures_of_step(classes());
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].name, "accuracy");
}

}  // namespace
}  // namespace strata::train
