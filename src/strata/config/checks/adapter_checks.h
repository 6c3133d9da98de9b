// What the settings of adapters and of a quantised base may not be: settings of another method, a
// quantised base without an adapter. Owns: these rules. Never: which layers an adapter fits
// (adapters/), other rules (checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_adapter(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings);

}  // namespace strata::config
