// Which figures of a run are its recipe's: what logged rows hold beside losses, speed and the
// machine's readings. Owns: that choice. Never: what the figures mean.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::report {

constexpr const char* kEvaluationPrefix = "eval_";

// The number of that name in a row of metrics.jsonl.
std::optional<double> number_at(const Json& row, const std::string& key);

// "rewards/margins", "mean_token_accuracy", ...: without the prefix that they have in evaluations,
// each once; accuracies of answers and margins first, otherwise in the order of the rows.
std::vector<std::string> recipe_figures(const std::vector<Json>& rows);

}  // namespace strata::report
