// The settings of a checkpoint of OPT (and of Galactica, which is one) or of XGLM, read from
// config.json and checked. Owns: names, defaults and relations of the keys. Never: weights. Source:
// transformers configuration_{opt,xglm}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/activation.h"
#include "strata/nn/layer_norm.h"

namespace strata::models {

struct OptConfig {
  std::string layer_class = "OPTDecoderLayer";
  std::string architecture = "OPTForCausalLM";
  std::string body = "model.decoder";  // the module of all but the output layer
  std::string final_norm = "final_layer_norm";
  std::vector<std::string> lora_targets = {"q_proj", "v_proj"};  // PEFT's; empty: it has none
  std::vector<std::string> ia3_targets = {"q_proj", "k_proj", "fc2"};
  std::vector<std::string> ia3_feedforward = {"fc2"};
  bool has_modules_of_opt = true;  // in the order of its class
  int64_t vocab_size = 50272;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t ffn_dim = 3072;
  int64_t max_position_embeddings = 2048;
  int64_t word_embed_proj_dim = 768;  // of the embedding's rows; default: hidden_size
  nn::Activation activation = nn::Activation::kRelu;
  double dropout = 0.1;            // of what attention and MLP add, while training
  double attention_dropout = 0.0;  // of the probabilities
  double embedding_dropout = 0.0;  // of the embedded rows
  double hidden_dropout = 0.0;     // between the two layers of the MLP
  double embedding_scale = 1.0;    // of the rows of tokens
  bool has_sinusoids = false;      // positions are computed, any number of them
  double init_std = 0.02;
  bool do_layer_norm_before = true;  // norms of what attention and MLP read; else of the sums
  bool remove_final_layer_norm = false;
  bool enable_bias = true;                    // of all linear layers in a layer
  bool layer_norm_elementwise_affine = true;  // norms have weights and biases
  bool tie_word_embeddings = true;
  std::optional<int64_t> pad_token_id = 1;  // this embedding row receives no gradient
  int64_t num_labels = 0;     // that a head gives a document in place of the output layer; 0: none
  bool has_own_head = false;  // in the file of the weights, although config.json ties

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  nn::LayerNormAffine norm_affine() const {
    return layer_norm_elementwise_affine ? nn::LayerNormAffine::kWeightAndBias
                                         : nn::LayerNormAffine::kNone;
  }
  bool has_projections() const { return word_embed_proj_dim != hidden_size; }
  bool has_final_norm() const { return do_layer_norm_before && !remove_final_layer_norm; }
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
OptConfig parse_opt_config(const Json& config);
OptConfig parse_xglm_config(const Json& config);

}  // namespace strata::models
