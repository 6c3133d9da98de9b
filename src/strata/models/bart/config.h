// The settings of a BART checkpoint, read from config.json and checked. Owns: names, defaults and
// relations of the keys. Never: weights. Source: transformers configuration_bart.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/nn/activation.h"

namespace strata::models {

// Of one stack.
struct BartStackConfig {
  int64_t layers = 12;
  int64_t heads = 16;
  int64_t ffn_dim = 4096;
};

struct BartConfig {
  int64_t vocab_size = 50265;
  int64_t d_model = 1024;
  int64_t max_position_embeddings = 1024;  // of source and target each
  BartStackConfig encoder, decoder;
  nn::Activation activation = nn::Activation::kGelu;
  double dropout = 0.1;           // of embeddings, and of what a layer adds
  double attention_dropout = 0;   // of the probabilities
  double activation_dropout = 0;  // in the MLP
  double init_std = 0.02;
  bool scale_embedding = false;             // its rows times d_model^0.5
  std::optional<int64_t> pad_token_id = 1;  // this embedding row receives no gradient
  int64_t decoder_start_token_id = 2;
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
BartConfig parse_bart_config(const Json& config);

}  // namespace strata::models
