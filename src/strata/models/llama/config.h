// The settings of a Llama checkpoint, read from config.json and checked. Owns: names, defaults and
// relations of the keys. Never: weights. Source: transformers configuration_llama.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/nn/rope.h"

namespace strata::models {

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;  // default: num_attention_heads
  int64_t head_dim = 128;            // default: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;  // this embedding row receives no gradient
  nn::RopeOptions rope;
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot (hidden_act, rope types).
LlamaConfig parse_llama_config(const Json& config);

}  // namespace strata::models
