// The layers of Granite's mixtures: the extended layer, or Llama's, with a mixture in the place of
// the MLP. Owns: that they are put together. Never: the order of a layer's operations
// (llama/extended_layer.h, llama/blocks.h).
#pragma once

#include "strata/models/granite_moe/config.h"
#include "strata/models/llama/model.h"

namespace strata::models {

MakeDecoderLayer make_granite_moe_layers(const GraniteMoeConfig& config);
// The same of Granite with windows: Llama's layer, which has sinks.
MakeDecoderLayer make_granite_moe_swa_layers(const GraniteMoeConfig& config);

}  // namespace strata::models
