// Oracle: accuracy and F1 counted by hand, as scikit-learn defines them; the tally of all documents
// at once for those of parts.
#include "strata/train/loop/label_figures.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strata::train {
namespace {

double value_of(const Figures& figures, const char* name) {
  return std::ranges::find(figures, name, &Figure::name)->mean();
}

// Four documents of three classes: told 0, 1, 1, 2; the fourth class is nobody's.
nn::DocumentTask classes() {
  return {.loss = nn::DocumentLoss::kClasses,
          .rows = {0, 1, 2, 3},
          .targets = {0, 1, 0, 2},
          .values = {3, 1, 2, 0, 0, 5, 1, 0, 1, 2, 1, 0, 0, 0, 9, 1}};
}

TEST(LabelFigures, OfClassesAreThoseOfAllRows) {
  const Figures figures = label_figures(nn::DocumentLoss::kClasses, tally_of(classes()));
  EXPECT_DOUBLE_EQ(value_of(figures, "accuracy"), 0.75);
  // 2/3 of class 0 (one of two found), 2/3 of class 1 (one of two told), 1 of class 2.
  EXPECT_DOUBLE_EQ(value_of(figures, "f1"), (2.0 / 3 + 2.0 / 3 + 1) / 3);
}

TEST(LabelFigures, LeaveOutRowsThatOnlyFillABatch) {
  nn::DocumentTask task = classes();
  task.num_counted = 2;
  EXPECT_EQ(num_counted(task), 2);
  EXPECT_DOUBLE_EQ(value_of(label_figures(task.loss, tally_of(task)), "accuracy"), 1);
  task.num_counted = 0;
  EXPECT_DOUBLE_EQ(value_of(label_figures(task.loss, tally_of(task)), "accuracy"), 0);
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
  EXPECT_DOUBLE_EQ(value_of(label_figures(labels.loss, tally_of(labels)), "f1"), 4.0 / 6);
  const nn::DocumentTask numbers{
      .loss = nn::DocumentLoss::kNumbers, .rows = {0, 1}, .targets = {1, 2}, .values = {1.5, 4}};
  EXPECT_DOUBLE_EQ(value_of(label_figures(numbers.loss, tally_of(numbers)), "mse"), 4.25 / 2);
}

TEST(LabelFigures, OfAStepAreRatiosOfSums) {
  const Figures figures = label_figures_of_step(classes());
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].name, "accuracy");
}

}  // namespace
}  // namespace strata::train
