// From settings to DeepSpeed's ds_config (`strata config convert --to deepspeed`). Never: reads or
// writes files.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/config/resolve.h"

namespace strata::config {

// What was given becomes a value; of the rest, what every run has to say is "auto". Given settings
// that such a file has no place for are named in `warnings`.
// Throws ConfigError for a strategy that DeepSpeed does not have (HYBRID_SHARD).
Json to_deepspeed(const Settings& settings, std::vector<std::string>& warnings);

}  // namespace strata::config
