#include "strata/report/figures.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace strata::report {
namespace {

// Also after the prefix of an evaluation.
bool is_of_any_run(std::string_view name) {
  constexpr std::array<std::string_view, 12> kOfAnyRun = {
      "step",        "epoch",           "loss",       "learning_rate",     "grad_norm",
      "num_tokens",  "runtime",         "total_flos", "tokens_per_second", "elapsed_seconds",
      "peak_rss_mb", "device_memory_mb"};
  return std::ranges::find(kOfAnyRun, name) != kOfAnyRun.end() || name.starts_with("train_") ||
         name.ends_with("_per_second");
}

// What a reader looks for first: how often, and by how much, answers are judged right.
bool is_telling(const std::string& name) {
  return name.ends_with("accuracies") || name == "accuracy" ||
         name.find("margin") != std::string::npos;
}

}  // namespace

std::optional<double> number_at(const Json& row, const std::string& key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) {
    return std::nullopt;
  }
  return found->get<double>();
}

std::vector<std::string> recipe_figures(const std::vector<Json>& rows) {
  constexpr std::string_view kPrefix = kEvaluationPrefix;
  std::vector<std::string> names;
  for (const Json& row : rows) {
    for (const auto& [key, value] : row.items()) {
      const std::string name = key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
      if (!value.is_number() || is_of_any_run(name)) continue;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::ranges::stable_partition(names, is_telling);
  return names;
}

}  // namespace strata::report
