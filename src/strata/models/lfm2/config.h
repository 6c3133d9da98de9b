// The settings of LFM2 and of its mixtures (LFM2-8B-A1B), read from config.json and checked. Owns:
// names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_{lfm2,lfm2_moe}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/llama/config.h"
#include "strata/models/moe/config.h"

namespace strata::models {

struct Lfm2Config {
  LlamaConfig llama;
  std::vector<bool> is_conv;  // of each layer: a short convolution in the place of attention
  int64_t conv_size = 3;
  bool conv_bias = false;                // of the convolution and of the products around it
  std::optional<MixtureConfig> mixture;  // of the layers that it says have one
};

// Errors: as parse_llama_config().
Lfm2Config parse_lfm2_config(const Json& config);
Lfm2Config parse_lfm2_moe_config(const Json& config);

}  // namespace strata::models
