// What the settings of the recipe kto may not be together. Owns: these rules. Never: which settings
// belong to which recipe (recipe_checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Whether the recipe is kto with a loss that needs an estimate of how far the model is from its
// reference: of answers after prompts of other rows of the same micro-batch.
bool estimates_divergence(const RunConfig& config);

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_rated(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
