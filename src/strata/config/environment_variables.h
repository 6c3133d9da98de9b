// The variables ACCELERATE_*, FSDP_* and PARALLELISM_CONFIG_* that accelerate's launcher exports.
// Owns: their names. Never: ranks and addresses (launch/environment.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/config/value.h"

namespace strata::config {

using Environment = std::map<std::string, std::string>;

// Empty variables count as unset. Variables of these prefixes that no setting knows become
// warnings.
std::vector<Given> read_environment(const Environment& environment,
                                    std::vector<std::string>& warnings);

}  // namespace strata::config
