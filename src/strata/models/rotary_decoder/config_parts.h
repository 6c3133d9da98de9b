// What the parsers of the families have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/rotary_decoder/config.h"

namespace strata::models {

// Sizes and flags that all families have. `c` holds the family's defaults. `eps_key`: of the norms;
// empty: theirs is the default.
void parse_rotary_common(const ConfigReader& config, RotaryDecoderConfig& c,
                         const std::string& eps_key);

// The key "head_dim", or what remains of the hidden size; how the numbers of heads must relate.
// Call when num_key_value_heads is known.
void parse_rotary_heads(const ConfigReader& config, RotaryDecoderConfig& c);

// Heads that share the hidden size out, as many of keys as of queries. FormatError that names both
// keys where they cannot.
void split_hidden_size(RotaryDecoderConfig& c, const char* hidden_key, const char* heads_key);

// ConfigError for an output layer that is tied, where it has a bias, which the table has not.
void refuse_tie(const RotaryDecoderConfig& c, const std::string& family);

// ConfigError for a head_dim of which the reference would take a part for another.
void refuse_other_head_dim(const RotaryDecoderConfig& c, const std::string& family);

}  // namespace strata::models
