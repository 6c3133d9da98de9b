// The layers of Qwen3.5 and Qwen3-Next: attention with a gate after it, or a gated delta network
// in its place, then Llama's MLP or a mixture. Owns: which layer has what. Never: the order of a
// layer's operations (llama/mixer_layer.h).
#pragma once

#include "strata/models/llama/model.h"
#include "strata/models/qwen3_5/config.h"

namespace strata::models {

// The layers of one model, which share the lanes of a batch.
MakeDecoderLayer make_qwen3_5_layers(const Qwen35Config& config);

}  // namespace strata::models
