// What the parsers of the families have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <string>
#include <vector>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Sizes and flags that all families have. `c` holds the family's defaults.
void parse_common(const ConfigReader& config, LlamaConfig& c);

// The rotation, and how sizes must relate.
void parse_positions(const ConfigReader& config, LlamaConfig& c, bool splits_hidden_size = false);

// ConfigError unless `key` is one of `names`, of which the first is the default.
void require_activation(const ConfigReader& config, const std::string& key,
                        const std::vector<std::string>& names);

}  // namespace strata::models
