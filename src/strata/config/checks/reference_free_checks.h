// What the settings of the recipes orpo and cpo may not be together. Owns: these rules. Never:
// which settings belong to which recipe (recipe_checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_reference_free(const RunConfig& config, const Merge& merge,
                          std::vector<std::string>& warnings);

}  // namespace strata::config
