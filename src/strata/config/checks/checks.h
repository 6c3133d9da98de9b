// Rules between settings, and warnings for settings without effect. Owns: what may not go together.
// Never: single values (value.h), anything that needs the model or the data.
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_settings(const RunConfig& config, const Merge& merge,
                    std::vector<std::string>& warnings);

}  // namespace strata::config
