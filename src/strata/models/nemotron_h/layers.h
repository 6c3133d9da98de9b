// The layers of Nemotron-H. Owns: which layer has what, and under which names. Never: the order of
// a layer's operations (layer.h).
#pragma once

#include "strata/models/llama/model.h"
#include "strata/models/nemotron_h/config.h"

namespace strata::models {

// The layers of one model, which share the lanes of a batch.
MakeDecoderLayer make_nemotron_h_layers(const NemotronHConfig& config);

}  // namespace strata::models
