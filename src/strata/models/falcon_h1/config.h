// The settings of Falcon-H1, read from config.json and checked: attention and Mamba-2 side by side
// in every layer, with factors before and after almost everything. Owns: names, defaults and
// relations of the keys. Never: weights. Source: transformers configuration_falcon_h1.py.
#pragma once

#include "strata/models/llama/config.h"
#include "strata/models/mamba/config.h"

namespace strata::models {

struct FalconH1Config {
  LlamaConfig llama;    // attention_scale: with the factor of the keys
  MambaConfig mamba;    // residual_multiplier: of what it gives
  double ssm_in = 1.0;  // of what Mamba-2 reads
  double attention_in = 1.0, attention_out = 1.0;
  double gate = 1.0, down = 1.0;  // of the MLP
};

// Errors: as parse_llama_config().
FalconH1Config parse_falcon_h1_config(const Json& config);

}  // namespace strata::models
