// OLMoE and Hunyuan's mixtures: a mixture of experts in the layer that more than Llama's own does
// (llama/extended_layer.h). Owns: their settings and that they are put together. Never: layer or
// mixture. Source: transformers configuration_{olmoe,hunyuan_v1_moe}.py.
#pragma once

#include "strata/base/json.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/moe/config.h"

namespace strata::models {

struct ExtendedMixtureConfig {
  ExtendedConfig layer;  // of whose llama the mixture's stands in the place
  MixtureConfig mixture;
};

// Errors: as parse_llama_config().
ExtendedMixtureConfig parse_olmoe_config(const Json& config);
ExtendedMixtureConfig parse_hunyuan_v1_moe_config(const Json& config);

MakeDecoderLayer make_extended_mixture_layers(const ExtendedMixtureConfig& config);

}  // namespace strata::models
