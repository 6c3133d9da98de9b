// The settings of a checkpoint of GPT-NeoX (Pythia, Dolly, GPT-NeoX-20B), read from config.json and
// checked. Owns: names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_gpt_neox.py.
#pragma once

#include <cstdint>

#include "strata/base/json.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/rope.h"

namespace strata::models {

struct GptNeoXConfig {
  int64_t vocab_size = 50432;
  int64_t hidden_size = 6144;
  int64_t intermediate_size = 24576;
  int64_t num_hidden_layers = 44;
  int64_t num_attention_heads = 64;
  int64_t max_position_embeddings = 2048;
  nn::Activation activation = nn::Activation::kGelu;
  double attention_dropout = 0;  // of the probabilities, while training
  double hidden_dropout = 0;     // of embeddings, and of what attention and MLP add
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool attention_bias = true;
  bool use_parallel_residual = true;  // attention and MLP read the same; else one after the other
  bool tie_word_embeddings = false;
  int64_t num_labels = 0;     // that a head gives a document in place of the output layer; 0: none
  bool has_own_head = false;  // in the file of the weights, although config.json ties
  nn::RopeOptions rope;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
GptNeoXConfig parse_gpt_neox_config(const Json& config);

}  // namespace strata::models
