// What the settings of checkpoints may not be: strategies that never meet, a best checkpoint that
// nothing measures. Owns: these rules. Never: other rules (checks.h, recipe_checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError where Trainer refuses too, and for a metric that no evaluation gives; appends
// a line for every setting that was given and does nothing.
void check_saving(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
