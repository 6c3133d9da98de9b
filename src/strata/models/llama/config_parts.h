// What the parsers of the families have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <string>
#include <vector>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Sizes and flags that all families have. `c` holds the family's defaults.
void parse_common(const ConfigReader& config, LlamaConfig& c);

// How settings must relate, whatever reads them. Call when all of them are known.
void check_relations(const LlamaConfig& c, bool splits_hidden_size = false);

// The rotation, and how settings must relate.
void parse_positions(const ConfigReader& config, LlamaConfig& c, bool splits_hidden_size = false,
                     double default_theta = 10000.0);

// The query heads where the key says null; where it is missing, `fallback`.
int64_t key_value_heads(const ConfigReader& config, const LlamaConfig& c, int64_t fallback);

// The key "head_dim", or what remains of the hidden size.
void parse_head_dim(const ConfigReader& config, LlamaConfig& c);

// The token whose embedding has no gradient, where the family has one by default: a key that says
// null means none. FormatError for one that is not in the vocabulary.
void parse_default_padding_id(const ConfigReader& config, LlamaConfig& c, int64_t fallback);

// Of local and global layers. The window of each layer, 0 for global ones: those that layer_types
// says, or every `period`-th.
std::vector<int64_t> parse_windows(const ConfigReader& config, int64_t num_layers, int64_t period,
                                   int64_t default_window = 4096);

// Their rotations, `rope` and `local_rope`, by `rope_parameters` of each kind or by older keys.
struct RopeThetas {
  double global, local;
};
void parse_rotations(const ConfigReader& config, LlamaConfig& c, const RopeThetas& defaults);

// ConfigError for layers with a window, in a family that has none.
void refuse_windows(const ConfigReader& config, int64_t num_hidden_layers);

// ConfigError unless `key` is one of `names`, of which the first is the default.
void require_activation(const ConfigReader& config, const std::string& key,
                        const std::vector<std::string>& names);

}  // namespace strata::models
