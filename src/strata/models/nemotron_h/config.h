// The settings of Nemotron-H, Nemotron Nano 2 and 3, read from config.json and checked: layers of
// one module each, which is Mamba-2, attention without positions, an MLP or a mixture. Owns: names,
// defaults and relations of the keys. Never: weights. Source: transformers
// configuration_nemotron_h.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/llama/config.h"
#include "strata/models/mamba/config.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::models {

enum class NemotronLayerKind { kMamba, kAttention, kMlp, kMixture };

struct NemotronExperts {
  int64_t count = 0;
  int64_t intermediate_size = 0;         // of one
  int64_t shared_intermediate_size = 0;  // of the MLP of all tokens
  std::optional<int64_t> latent_size;    // of what experts read and give; none: the hidden size
  nn::SigmoidRouterOptions router{};
};

struct NemotronHConfig {
  LlamaConfig llama;
  std::vector<NemotronLayerKind> kinds;  // of each layer
  MambaConfig mamba;
  NemotronExperts experts;  // of layers with a mixture
};

// Errors: as parse_llama_config().
NemotronHConfig parse_nemotron_h_config(const Json& config);

// The kinds of layers: layers_block_type, under its other name layer_types, or the letters of
// hybrid_override_pattern.
std::vector<NemotronLayerKind> parse_nemotron_kinds(const ConfigReader& config);

}  // namespace strata::models
