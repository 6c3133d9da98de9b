// nanochat: the extended layer with norms that have no weights, heads that turn the other way and
// an MLP without a gate. Owns: its keys of config.json, and that these are put together. Never: the
// order of a layer's operations (llama/extended_layer.h). Source: transformers
// configuration_nanochat.py.
#pragma once

#include "strata/models/llama/model.h"
#include "strata/models/llama/plain_mlp.h"

namespace strata::models {

// Errors: as parse_llama_config().
PlainMlpConfig parse_nanochat_config(const Json& config);

MakeDecoderLayer make_nanochat_layers(const PlainMlpConfig& config);

}  // namespace strata::models
