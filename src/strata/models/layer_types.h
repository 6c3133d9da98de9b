// Which layers attend to a window alone: `layer_types` of config.json. Owns: reading and checking
// the list. Never: what a family does without one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/config_reader.h"

namespace strata::models {

// For each layer whether it is "sliding_attention" and not "full_attention"; nothing where the file
// has no such list. FormatError for a list of another length or of no texts, ConfigError for other
// kinds of layers.
std::optional<std::vector<bool>> read_layer_types(const ConfigReader& config,
                                                  int64_t num_hidden_layers);

}  // namespace strata::models
