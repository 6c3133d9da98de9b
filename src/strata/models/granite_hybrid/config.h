// The settings of Granite 4.0 (granitemoehybrid), read from config.json and checked. Owns: names,
// defaults and relations of the keys. Never: weights. Source: transformers
// configuration_granitemoehybrid.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/granite_moe/config.h"
#include "strata/models/llama/config.h"
#include "strata/models/mamba/config.h"

namespace strata::models {

struct GraniteHybridConfig {
  LlamaConfig llama;            // intermediate_size: of the MLP of all tokens
  std::vector<bool> has_mamba;  // of each layer, in the place of attention
  MambaConfig mamba;
  std::optional<GraniteExperts> experts;  // of all layers
};

// Errors: as parse_llama_config().
GraniteHybridConfig parse_granitemoehybrid_config(const Json& config);

}  // namespace strata::models
