// The settings of a checkpoint of T5 (T5 v1.1, Flan-T5), mT5 or UMT5, read from config.json and
// checked. Owns: names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_t5.py, configuration_mt5.py, configuration_umt5.py.
#pragma once

#include <cstdint>
#include <string>

#include "strata/base/json.h"
#include "strata/nn/activation.h"

namespace strata::models {

struct T5Config {
  std::string prefix = "T5";  // of the classes
  int64_t vocab_size = 32128;
  int64_t d_model = 512;
  int64_t d_kv = 64;  // channels of a head, whatever d_model is
  int64_t d_ff = 2048;
  int64_t num_layers = 6;          // of the encoder
  int64_t num_decoder_layers = 6;  // default: num_layers
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  double initializer_factor = 1.0;
  nn::Activation activation = nn::Activation::kRelu;
  bool is_gated = false;
  // The decoder's output times d_model^-0.5 before the output layer: as scale_decoder_outputs says,
  // or unless tie_word_embeddings is false. Whether the output layer is tied is a matter of the
  // weights' file alone.
  bool scales_output = true;
  // Each block has a table of relative positions; else the first of a stack has it for all.
  bool has_bias_in_all = false;
  int64_t decoder_start_token_id = 0;
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
T5Config parse_t5_config(const Json& config);
T5Config parse_mt5_config(const Json& config);
T5Config parse_umt5_config(const Json& config);

}  // namespace strata::models
