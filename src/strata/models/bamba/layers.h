// The layers of Bamba: Mamba-2 or attention, then an MLP. Owns: which layer has what, and under
// which names. Never: the order of a layer's operations (llama/mixer_layer.h).
#pragma once

#include "strata/models/bamba/config.h"
#include "strata/models/llama/gated_feed_forward.h"
#include "strata/models/llama/model.h"

namespace strata::models {

// The MLP of layer `index`, that of Falcon-H1's, too.
GatedFeedForwardOptions bamba_mlp(const LlamaConfig& llama, int64_t index, at::ScalarType storage);

// The layers of one model, which share the lanes of a batch.
MakeDecoderLayer make_bamba_layers(const BambaConfig& config);

}  // namespace strata::models
