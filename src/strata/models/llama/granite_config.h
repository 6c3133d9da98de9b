// What the parsers of all of Granite's families have in common. Owns: declarations. Never: defaults
// of a family.
#pragma once

#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Of embeddings, scores, residual branches and logits.
void parse_granite_multipliers(const ConfigReader& config, LlamaConfig& c);

}  // namespace strata::models
