#include "strata/train/loop/label_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strata/base/error.h"

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

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double f1_of_class(std::span<const double> tally, size_t number) {
  const size_t at = kOfClasses + kOfEachClass * number;
  return at < tally.size() ? ratio(2 * tally[at], tally[at + 1] + tally[at + 2]) : 0;
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

double matthews(std::span<const double> tally) {
  const double all = tally[0];
  double both = 0, told = 0, there = 0;
  for (size_t at = kOfClasses; at < tally.size(); at += kOfEachClass) {
    both += tally[at + 1] * tally[at + 2];
    told += tally[at + 1] * tally[at + 1];
    there += tally[at + 2] * tally[at + 2];
  }
  const double spread = (all * all - told) * (all * all - there);
  return spread > 0 ? (tally[1] * all - both) / std::sqrt(spread) : 0;
}

double correlation(std::span<const double> a, std::span<const double> b) {
  const auto count = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / count;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / count;
  double both = 0, spread_a = 0, spread_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - mean_a) * (b[i] - mean_b);
    spread_a += (a[i] - mean_a) * (a[i] - mean_a);
    spread_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  const double spread = std::sqrt(spread_a) * std::sqrt(spread_b);
  return spread > 0 ? both / spread : 0;
}

// The place of each among all, of equal ones the mean of theirs.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = (static_cast<double>(begin) + static_cast<double>(end - 1)) / 2;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

double correlation_of(std::span<const double> placed, bool of_ranks) {
  std::vector<double> sides[2];
  for (size_t i = 0; i < placed.size(); ++i) sides[i % 2].push_back(placed[i]);
  // Values of a model that is none have no order.
  if (!std::ranges::all_of(placed, [](double value) { return std::isfinite(value); })) return 0;
  return of_ranks ? correlation(ranks_of(sides[0]), ranks_of(sides[1]))
                  : correlation(sides[0], sides[1]);
}

double value_of(std::string_view name, nn::DocumentLoss loss, std::span<const double> tally,
                bool is_of_class_1) {
  if (name == "accuracy" || name == "mse") return ratio(tally[1], tally[0]);
  if (name == "matthews_correlation") return matthews(tally);
  if (name == "pearson" || name == "spearmanr") return correlation_of(tally, name == "spearmanr");
  if (name != "f1") throw InternalError("figures: found {}, expected one of labels", name);
  if (loss == nn::DocumentLoss::kLabels) return ratio(2 * tally[0], tally[1] + tally[2]);
  return is_of_class_1 ? f1_of_class(tally, 1) : mean_f1(tally);
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

std::vector<double> placed_tally_of(const nn::DocumentTask& task, std::span<const int64_t> rows,
                                    size_t set_size) {
  std::vector<double> tally(2 * set_size, 0.0);
  for (size_t d = 0; d < static_cast<size_t>(num_counted(task)); ++d) {
    const size_t at = 2 * static_cast<size_t>(rows[d]);
    tally.at(at) = task.values[d];
    tally.at(at + 1) = task.targets[d];
  }
  return tally;
}

bool LabelFigures::are_placed() const { return std::ranges::find(names, "pearson") != names.end(); }

Figures label_figures(nn::DocumentLoss loss, std::span<const double> tally,
                      const LabelFigures& figures) {
  if (tally.empty()) return {};
  Figures told;
  double sum = 0;
  for (const std::string_view name : figures.names) {
    const double value = name == "combined_score"
                             ? ratio(sum, static_cast<double>(told.size()))
                             : value_of(name, loss, tally, figures.is_of_class_1);
    told.push_back({std::string(name), value, 1});
    sum += value;
  }
  return told;
}

Figures label_figures_of_step(const nn::DocumentTask& task) {
  const std::vector<double> tally = tally_of(task);
  if (task.loss == nn::DocumentLoss::kClasses) return {{"accuracy", tally[1], tally[0]}};
  if (task.loss == nn::DocumentLoss::kLabels) return {{"f1", 2 * tally[0], tally[1] + tally[2]}};
  return {};
}

}  // namespace strata::train
