#include "strata/train/labels.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/config/derived.h"
#include "strata/config/glue_tasks.h"
#include "strata/config/recipes.h"
#include "strata/train/setup/model_config.h"

namespace strata::train {
namespace {

using config::LabelProblem;

// As Python writes it: "01" is a name.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && std::to_string(number) == text;
  return is_whole ? std::optional(number) : std::nullopt;
}

bool are_numbers(const std::vector<std::string>& names) {
  return std::ranges::all_of(names,
                             [](const auto& name) { return whole_number(name).has_value(); });
}

bool are_numbers_below(const std::vector<std::string>& names, int64_t end) {
  return std::ranges::all_of(names, [end](const std::string& name) {
    const auto number = whole_number(name);
    return number && *number >= 0 && *number < end;
  });
}

std::vector<std::string> numbers_below(int64_t end) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < end; ++i) names.push_back(std::to_string(i));
  return names;
}

bool holds_all(const std::vector<std::string>& names, const std::vector<std::string>& wanted) {
  return std::ranges::all_of(
      wanted, [&](const auto& name) { return std::ranges::find(names, name) != names.end(); });
}

void sort_names(std::vector<std::string>& names) {
  if (are_numbers(names)) {
    std::ranges::sort(names, {}, [](const std::string& name) { return *whole_number(name); });
  } else {
    std::ranges::sort(names);
  }
}

// At most ten of them.
std::string shown(const std::vector<std::string>& names) {
  constexpr size_t kMost = 10;
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kMost)));
  return fmt::format("\"{}\"{}", fmt::join(first, "\", \""), names.size() > kMost ? ", ..." : "");
}

const char* describe(data::LabelKind kind) {
  return kind == data::LabelKind::kNumber   ? "numbers"
         : kind == data::LabelKind::kLabels ? "lists of labels"
                                            : "classes";
}

LabelProblem problem_of_rows(data::LabelKind kind) {
  return kind == data::LabelKind::kNumber   ? LabelProblem::kNumbers
         : kind == data::LabelKind::kLabels ? LabelProblem::kLabels
                                            : LabelProblem::kClasses;
}

void require_one_kind(const Datasets& datasets) {
  const data::LabelKind train = datasets.train.stats().label_kind;
  for (const data::TokenStore* set : datasets.evaluations()) {
    const data::LabelKind eval = set->stats().label_kind;
    if (train == eval) continue;
    throw FormatError(
        "label_column_name: found {} in the rows of the evaluation, expected {} as in those of the "
        "training; give both the same labels, or set --do_regression true or false",
        describe(eval), describe(train));
  }
}

void require_kind_of_task(const config::ClassifyConfig& settings) {
  if (settings.task_name.empty() || settings.problem != LabelProblem::kLabels) return;
  throw FormatError("task_name: found lists of labels with {}, expected classes; remove it",
                    settings.task_name);
}

// What an evaluation of such labels gives beside its loss.
void require_metric(const config::RunConfig& config) {
  const std::string metric = config::best_metric(config);
  const auto is_it = [&](std::string_view name) { return metric == fmt::format("eval_{}", name); };
  const std::vector<std::string_view> given = config::label_figures_of(config.classify);
  const bool is_figure = std::ranges::any_of(config::recipe_of(config).figures, is_it);
  if (!is_figure || std::ranges::any_of(given, is_it)) return;
  throw ConfigError(
      "metric_for_best_model: found {}, expected {}, which evaluations of such labels give; change "
      "it",
      config.train.metric_for_best_model, fmt::join(given, " or "));
}

// Which losses have a smoothed form is not known before the labels are.
void require_classes_to_smooth(const config::RunConfig& config) {
  if (config.train.label_smoothing_factor == 0) return;
  const LabelProblem problem = config.classify.problem;
  if (problem == LabelProblem::kClasses) return;
  throw ConfigError(
      "label_smoothing_factor: found {} for labels that are {}, expected it with classes; remove "
      "it",
      config.train.label_smoothing_factor, problem == LabelProblem::kNumbers ? "numbers" : "lists");
}

// The labels of all sets, in the order in which they came.
std::vector<std::string> labels_in(const Datasets& datasets, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  for (const data::SeenLabel& label : datasets.train.stats().labels) names.push_back(label.name);
  for (const data::TokenStore* set : datasets.evaluations()) {
    for (const data::SeenLabel& label : set->stats().labels) {
      if (std::ranges::find(names, label.name) != names.end()) continue;
      names.push_back(label.name);
      notes.push_back(fmt::format(
          "warning: label \"{}\" is that of {} of the evaluation alone (the first: {}): nothing "
          "teaches it, but the head has a row for it",
          label.name, counted(label.count, "row"), label.first));
    }
  }
  return names;
}

// Those that the files of the sets have names for, in the order of their numbers, then all others.
std::vector<std::string> in_order(const Datasets& datasets, std::vector<std::string> found) {
  sort_names(found);
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  const auto add = [&](const std::vector<std::string>& others) {
    for (const std::string& name : others) {
      if (known.insert(name).second) names.push_back(name);
    }
  };
  add(datasets.train.stats().class_names);
  for (const data::TokenStore* set : datasets.evaluations()) add(set->stats().class_names);
  add(found);
  return names;
}

// What the evaluation alone has teaches nothing.
void require_several(const config::RunConfig& config, const Datasets& datasets) {
  const bool is_any = config.classify.problem == LabelProblem::kLabels;
  const std::vector<data::SeenLabel>& trained = datasets.train.stats().labels;
  if (trained.size() >= (is_any ? 1u : 2u)) return;
  if (trained.empty()) {
    throw ConfigError(
        "label_column_name: found no label in any list of the training rows, expected some; name "
        "their column with --label_column_name");
  }
  const data::SeenLabel& only = trained.front();
  throw ConfigError(
      "label_column_name: found the label \"{}\" alone in the training rows (the first: {}), "
      "expected two classes at least; name their column with --label_column_name, or use more rows",
      only.name, only.first);
}

// As many as the settings want.
std::vector<std::string> filled(std::vector<std::string> names, int64_t count) {
  const auto found = static_cast<int64_t>(names.size());
  if (found == count) return names;
  if (found < count && are_numbers_below(names, count)) return numbers_below(count);
  throw ConfigError(
      "num_labels: found {} for {} of the data ({}), expected {}; remove it", count,
      counted(found, "label"), shown(names),
      found > count ? "as many at least" : "as many, or labels that are numbers below it");
}

std::vector<std::string> names_for(const config::ClassifyConfig& settings,
                                   std::vector<std::string> found,
                                   const std::vector<std::string>& own) {
  const auto count = static_cast<int64_t>(own.size());
  const bool is_wanted = settings.num_labels.value_or(count) == count;
  if (count > 1 && is_wanted && holds_all(own, found)) return own;
  if (settings.num_labels) return filled(std::move(found), *settings.num_labels);
  const bool is_nameless = count > 1 && own == models::plain_label_names(count);
  if (is_nameless && are_numbers_below(found, count)) return numbers_below(count);
  return found;
}

// A head of as many rows trains on, and they stand for what they did not.
void tell_of_other_names(const config::RunConfig& config, const std::vector<std::string>& own,
                         std::vector<std::string>& notes) {
  const std::vector<std::string>& names = config.classify.label_names;
  const auto count = static_cast<int64_t>(names.size());
  const bool are_called_alike =
      own == names || (own == models::plain_label_names(count) && are_numbers_below(names, count));
  if (own.size() != names.size() || are_called_alike) return;
  notes.push_back(
      fmt::format("warning: the head that training starts from predicts {} and continues as one of "
                  "{}: its rows stand for these in this order; name the labels as it does if they "
                  "are the same",
                  shown(own), shown(names)));
}

void require_labels_of_adapter(const config::RunConfig& config,
                               const std::vector<std::string>& own) {
  const std::vector<std::string>& names = config.classify.label_names;
  const bool is_continued = !config.model.adapter_name_or_path.empty();
  if (!is_continued || own.empty() || own.size() == names.size()) return;
  throw ConfigError(
      "adapter_name_or_path: found an adapter whose head predicts {} ({}) for {} ({}), expected as "
      "many; fold it into its base (strata merge-adapter) and continue from that with "
      "--ignore_mismatched_sizes",
      counted(static_cast<int64_t>(own.size()), "label"), shown(own),
      counted(static_cast<int64_t>(names.size()), "label"), shown(names));
}

}  // namespace

Json config_with_labels(const config::ModelConfig& model) {
  Json config = load_model_config(model);
  models::give_labels_beside(model.adapter_name_or_path, config);
  return config;
}

void settle_labels(const Datasets& datasets, const Json& model_config, config::RunConfig& config,
                   std::vector<std::string>& notes) {
  config::ClassifyConfig& settings = config.classify;
  require_one_kind(datasets);
  settings.problem = problem_of_rows(datasets.train.stats().label_kind);
  require_kind_of_task(settings);
  require_metric(config);
  require_classes_to_smooth(config);
  const std::vector<std::string> own = models::label_names(model_config);
  if (settings.problem == LabelProblem::kNumbers) {
    if (settings.num_labels.value_or(1) != 1) {
      throw ConfigError("num_labels: found {} for labels that are numbers, expected 1; remove it",
                        *settings.num_labels);
    }
    settings.label_names = models::plain_label_names(1);
    require_labels_of_adapter(config, own);
    return;
  }
  std::vector<std::string> found = in_order(datasets, labels_in(datasets, notes));
  require_several(config, datasets);
  settings.label_names = names_for(settings, std::move(found), own);
  require_labels_of_adapter(config, own);
  tell_of_other_names(config, own, notes);
}

std::vector<int64_t> classes_of(const data::DatasetStats& stats,
                                const std::vector<std::string>& names) {
  std::unordered_map<std::string, int64_t> numbers;
  // If a name is there twice, the last one counts, as in label2id.
  for (size_t i = 0; i < names.size(); ++i) {
    numbers.insert_or_assign(names[i], static_cast<int64_t>(i));
  }
  std::vector<int64_t> classes;
  for (const data::SeenLabel& label : stats.labels) {
    const auto number = numbers.find(label.name);
    if (number == numbers.end()) {
      throw InternalError("labels: found \"{}\", expected one of {}", label.name, shown(names));
    }
    classes.push_back(number->second);
  }
  return classes;
}

models::Problem problem_of(LabelProblem problem) {
  return problem == LabelProblem::kNumbers  ? models::Problem::kNumbers
         : problem == LabelProblem::kLabels ? models::Problem::kLabels
                                            : models::Problem::kClasses;
}

bool give_labels(const config::ClassifyConfig& settings, Json& model_config) {
  const std::vector<std::string> own = models::label_names(model_config);
  std::vector<std::string> names = settings.label_names;
  models::Problem problem = problem_of(settings.problem);
  if (names.empty()) {  // a plan
    const bool is_number = settings.do_regression.value_or(false);
    if (is_number) problem = models::Problem::kNumbers;
    const int64_t others = own.empty() ? 2 : static_cast<int64_t>(own.size());
    names = models::plain_label_names(is_number ? 1 : settings.num_labels.value_or(others));
  }
  const bool is_new = own.size() != names.size();
  if (is_new && !own.empty() && !settings.ignore_mismatched_sizes) {
    throw ConfigError(
        "model_name_or_path: found a model whose head predicts {} ({}) for {} ({}), expected as "
        "many; add --ignore_mismatched_sizes to give it a new head",
        counted(static_cast<int64_t>(own.size()), "label"), shown(own),
        counted(static_cast<int64_t>(names.size()), "label"), shown(names));
  }
  models::give_labels(model_config, names, problem);
  return is_new;
}

}  // namespace strata::train
