// The settings of a checkpoint of ModernBERT (Warner et al. 2024), read from config.json and
// checked. Owns: names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_modernbert.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/rope.h"

namespace strata::models {

struct ModernBertConfig {
  int64_t vocab_size = 50368;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 1152;
  int64_t num_hidden_layers = 22;
  int64_t num_attention_heads = 12;
  int64_t max_position_embeddings = 8192;
  std::vector<bool> has_window;  // [layers]
  int64_t window = 65;           // of those: tokens on each side, each with the token itself
  nn::RopeOptions rope, window_rope;
  nn::Activation hidden_act = nn::Activation::kGelu;
  nn::Activation classifier_act = nn::Activation::kGelu;
  double norm_eps = 1e-5;
  bool norm_bias = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool classifier_bias = false;  // of the head's first layer; the last has one
  bool reads_mean = false;       // the head reads the mean of a text's rows, not the first
  double embedding_dropout = 0;
  double attention_dropout = 0;   // of the probabilities, and of what attention adds
  double mlp_dropout = 0;         // of what the MLP's last layer reads
  double classifier_dropout = 0;  // of what the head's last layer reads
  double initializer_range = 0.02;
  double initializer_cutoff = 2;                // no value farther from 0, in deviations
  std::optional<int64_t> pad_token_id = 50283;  // this embedding row receives no gradient
  int64_t num_labels = 0;
  bool has_new_dense = false;  // the head's first layer and its norm are not in the files

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
ModernBertConfig parse_modernbert_config(const Json& config);

}  // namespace strata::models
