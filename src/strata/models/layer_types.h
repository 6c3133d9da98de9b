// Which layers attend to a window alone, or mix tokens otherwise: `layer_types` of config.json.
// Owns: reading and checking the list. Never: what a family does without one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/config_reader.h"

namespace strata::models {

// For each layer whether it is "sliding_attention" and not "full_attention"; nothing where the file
// has no such list. FormatError for a list of another length or of no texts, ConfigError for other
// kinds of layers.
std::optional<std::vector<bool>> read_layer_types(const ConfigReader& config,
                                                  int64_t num_hidden_layers);

// Names of one kind of layer in `layer_types`, the newest first.
using LayerKind = std::vector<std::string>;

// For each layer whether it is of the first kind and not of the second; nothing where the file has
// no such list. Errors as above.
std::optional<std::vector<bool>> read_two_kinds(const ConfigReader& config, const std::string& key,
                                                int64_t num_hidden_layers, const LayerKind& first,
                                                const LayerKind& second);

}  // namespace strata::models
