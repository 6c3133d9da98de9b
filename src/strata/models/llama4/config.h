// The settings of Llama 4's language models, read from config.json and checked: layers that attend
// to chunks, others without positions whose queries grow with them, experts that are parameters of
// all of them, beside an MLP of all tokens. Owns: the keys beside those of Llama's families. Never:
// weights. Source: transformers configuration_llama4.py (Llama4TextConfig).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/base/json.h"
#include "strata/models/llama/config.h"
#include "strata/nn/attention/query_scale.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::models {

struct Llama4Config {
  LlamaConfig llama;  // whose intermediate size is that of experts
  std::vector<bool> has_experts = {};
  int64_t dense_intermediate_size = 0;  // of MLPs in layers without
  int64_t num_experts = 0;
  nn::SigmoidRouterOptions router{};
  bool norms_heads = false;            // q and k of layers with positions, after the rotation
  std::vector<bool> are_chunked = {};  // layers
  int64_t chunk = 0;                   // tokens of one
  std::optional<nn::QueryScale> query_scale = {};  // of layers without positions
};

// Errors: as parse_llama_config().
Llama4Config parse_llama4_text_config(const Json& config);

}  // namespace strata::models
