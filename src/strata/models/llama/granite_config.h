// What the parsers of all of Granite's families have in common. Owns: declarations. Never: defaults
// of a family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Of embeddings, scores, residual branches and logits.
void parse_granite_multipliers(const ConfigReader& config, LlamaConfig& c);

// Of a family whose layers have sinks, a window in three of four, and a rotation by layer. `c`
// holds its defaults; `default_key_heads`: where nothing says how many, by default the query heads.
LlamaConfig parse_granite_with_windows(const Json& config, const std::string& family, LlamaConfig c,
                                       std::optional<int64_t> default_key_heads = {});

}  // namespace strata::models
