// The settings of a text model of Qwen3.5, read from config.json and checked. Owns: names, defaults
// and relations of the keys. Never: weights. Source: transformers configuration_qwen3_5.py.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/models/llama/config.h"
#include "strata/nn/linear_attention/gated_delta_rule.h"

namespace strata::models {

struct Qwen35Config {
  LlamaConfig llama;            // what all layers share, and the layers with attention
  std::vector<bool> is_linear;  // of each layer: linear attention
  nn::DeltaShape delta;
  int64_t conv_size = 4;
};

Qwen35Config parse_qwen3_5_config(const Json& config);

}  // namespace strata::models
