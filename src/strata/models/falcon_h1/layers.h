// The layers of Falcon-H1: attention and Mamba-2 side by side, then an MLP. Owns: that they are put
// together, and under which names. Never: the order of a layer's operations (llama/mixer_layer.h).
#pragma once

#include "strata/models/falcon_h1/config.h"
#include "strata/models/llama/model.h"

namespace strata::models {

// The layers of one model, which share the lanes of a batch.
MakeDecoderLayer make_falcon_h1_layers(const FalconH1Config& config);

}  // namespace strata::models
