// The layers of Granite 4.0: Mamba-2 or attention, then an MLP, with a mixture beside it or
// without. Owns: which layer has what. Never: the order of a layer's operations
// (llama/mixer_layer.h).
#pragma once

#include "strata/models/granite_hybrid/config.h"
#include "strata/models/llama/model.h"

namespace strata::models {

// The layers of one model, which share the lanes of a batch.
MakeDecoderLayer make_granite_hybrid_layers(const GraniteHybridConfig& config);

}  // namespace strata::models
