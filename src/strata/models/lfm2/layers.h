// The layers of LFM2 and its mixtures: a short convolution or attention, then an MLP or a mixture.
// Owns: which layer has what, and under which names. Never: the order of a layer's operations
// (llama/mixer_layer.h).
#pragma once

#include "strata/models/lfm2/config.h"
#include "strata/models/llama/model.h"

namespace strata::models {

MakeDecoderLayer make_lfm2_layers(const Lfm2Config& config);

}  // namespace strata::models
