// What a recipe's settings may not be: those of the other recipes, and pairs of texts that
// contradict each other. Owns: these rules. Never: rules that hold for all recipes (checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_recipe(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
