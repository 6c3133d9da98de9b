// The layers of DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention, then Llama's MLP or
// a mixture. Owns: which layer has what. Never: the order of a layer's operations
// (llama/mixer_layer.h).
#pragma once

#include "strata/models/deepseek/config.h"
#include "strata/models/llama/model.h"

namespace strata::models {

MakeDecoderLayer make_deepseek_layers(const DeepseekConfig& config);

}  // namespace strata::models
