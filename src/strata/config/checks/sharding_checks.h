// What the settings of the sharding engine may not be: strategies, wrap policies, precisions and
// places of offloading that contradict each other. Owns: these rules. Never: which blocks and which
// world size a model allows (shard/, comm/), other rules (checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// Throws ConfigError; appends a line for every setting that was given and does nothing.
void check_sharding(const RunConfig& config, const Merge& merge,
                    std::vector<std::string>& warnings);

}  // namespace strata::config
