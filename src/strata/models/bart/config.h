// The settings of a checkpoint of BART, mBART, M2M-100 or Pegasus, read from config.json and
// checked. Owns: names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_bart.py and those of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/base/json.h"
#include "strata/nn/activation.h"

namespace strata::models {

// Of one stack.
struct BartStackConfig {
  int64_t layers = 12;
  int64_t heads = 16;
  int64_t ffn_dim = 4096;
  double layerdrop = 0;  // the share of passes of training in which a layer is left out
};

// What tells of a token's place.
enum class BartPositions {
  kLearned,  // rows of a table for each stack
  kM2m100,   // waves of the places among tokens that are not padding, of any number
  kMarian,   // waves of places that files may hold, up to max_position_embeddings
};

struct BartConfig {
  std::string prefix = "Bart";  // of the reference's classes
  // Norms ahead of attention and MLP, and behind the layers of each stack; else behind each sum.
  bool has_norms_first = false;
  bool has_embedding_norm = true;
  bool has_logits_bias =
      false;  // a buffer of its files, which trains nowhere; else those hold zeros
  BartPositions positions = BartPositions::kLearned;
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
  int64_t decoder_start_token_id = 2;       // or kStartsWithLastToken
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
BartConfig parse_bart_config(const Json& config);
BartConfig parse_mbart_config(const Json& config);
BartConfig parse_m2m_100_config(const Json& config);
BartConfig parse_pegasus_config(const Json& config);
BartConfig parse_marian_config(const Json& config);

}  // namespace strata::models
