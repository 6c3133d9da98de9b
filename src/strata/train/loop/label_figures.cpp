#include "strata/train/loop/label_figures.h"

#include <algorithm>

namespace strata::train {
namespace {

// Of classes the tally is: documents, right ones, then of each class how many were rightly told,
// were told, and are there.
constexpr size_t kOfClasses = 2, kOfEachClass = 3;

std::vector<double> tally_of_classes(const nn::DocumentTask& task, size_t count, size_t labels) {
  std::vector<double> tally(kOfClasses + kOfEachClass * labels, 0.0);
  for (size_t d = 0; d < count; ++d) {
    const auto values = std::span(task.values).subspan(d * labels, labels);
    const auto told = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    const auto real = static_cast<size_t>(task.targets[d]);
    const bool is_right = told == real;
    ++tally[0];
    tally[1] += is_right ? 1 : 0;
    tally[kOfClasses + kOfEachClass * told] += is_right ? 1 : 0;
    ++tally[kOfClasses + kOfEachClass * told + 1];
    ++tally[kOfClasses + kOfEachClass * real + 2];
  }
  return tally;
}

// Labels that were rightly told, were told, and are there.
std::vector<double> tally_of_labels(const nn::DocumentTask& task, size_t values) {
  std::vector<double> tally(3, 0.0);
  for (size_t i = 0; i < values; ++i) {
    const bool is_told = task.values[i] > 0, is_there = task.targets[i] > 0;
    tally[0] += is_told && is_there ? 1 : 0;
    tally[1] += is_told ? 1 : 0;
    tally[2] += is_there ? 1 : 0;
  }
  return tally;
}

std::vector<double> tally_of_numbers(const nn::DocumentTask& task, size_t values) {
  std::vector<double> tally{static_cast<double>(values), 0.0};
  for (size_t i = 0; i < values; ++i) {
    const double error = task.values[i] - static_cast<double>(task.targets[i]);
    tally[1] += error * error;
  }
  return tally;
}

double mean_f1(std::span<const double> tally) {
  double sum = 0, classes = 0;
  for (size_t at = kOfClasses; at < tally.size(); at += kOfEachClass) {
    const double told_and_there = tally[at + 1] + tally[at + 2];
    if (told_and_there == 0) continue;
    sum += 2 * tally[at] / told_and_there;
    ++classes;
  }
  return sum / std::max(classes, 1.0);
}

}  // namespace

int64_t num_counted(const nn::DocumentTask& task) {
  return task.num_counted < 0 ? static_cast<int64_t>(task.rows.size()) : task.num_counted;
}

std::vector<double> tally_of(const nn::DocumentTask& task) {
  const size_t labels = task.values.size() / std::max<size_t>(task.rows.size(), 1);
  const auto count = static_cast<size_t>(num_counted(task));
  switch (task.loss) {
    case nn::DocumentLoss::kClasses:
      return tally_of_classes(task, count, labels);
    case nn::DocumentLoss::kLabels:
      return tally_of_labels(task, count * labels);
    case nn::DocumentLoss::kNumbers:
      return tally_of_numbers(task, count * labels);
    case nn::DocumentLoss::kPairs:
      break;
  }
  return {};
}

Figures label_figures(nn::DocumentLoss loss, std::span<const double> tally) {
  if (tally.empty()) return {};
  switch (loss) {
    case nn::DocumentLoss::kClasses:
      return {{"accuracy", tally[1], tally[0]}, {"f1", mean_f1(tally), 1}};
    case nn::DocumentLoss::kLabels:
      return {{"f1", 2 * tally[0], tally[1] + tally[2]}};
    case nn::DocumentLoss::kNumbers:
      return {{"mse", tally[1], tally[0]}};
    case nn::DocumentLoss::kPairs:
      break;
  }
  return {};
}

Figures label_figures_of_step(const nn::DocumentTask& task) {
  Figures figures = label_figures(task.loss, tally_of(task));
  // Those of a set that are no ratio of sums.
  std::erase_if(figures, [&](const Figure& figure) {
    return task.loss == nn::DocumentLoss::kNumbers ||
           (task.loss == nn::DocumentLoss::kClasses && figure.name == "f1");
  });
  return figures;
}

}  // namespace strata::train
