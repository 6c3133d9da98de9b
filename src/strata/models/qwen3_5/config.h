// The settings of Qwen3-Next and of the text models of Qwen3.5, read from config.json and checked.
// Owns: names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_{qwen3_next,qwen3_5,qwen3_5_moe}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/models/llama/config.h"
#include "strata/models/moe/config.h"
#include "strata/nn/linear_attention/gated_delta_rule.h"

namespace strata::models {

struct Qwen35Config {
  LlamaConfig llama;            // what all layers share, and the layers with attention
  std::vector<bool> is_linear;  // of each layer: linear attention
  nn::DeltaShape delta;
  int64_t conv_size = 4;
  // Linear attention has its inputs as two matrices, key head by key head.
  bool has_fused_inputs = false;
  std::optional<MixtureConfig> mixture;  // of the layers that it says have one
};

Qwen35Config parse_qwen3_5_config(const Json& config);
Qwen35Config parse_qwen3_5_moe_config(const Json& config);
Qwen35Config parse_qwen3_next_config(const Json& config);

}  // namespace strata::models
