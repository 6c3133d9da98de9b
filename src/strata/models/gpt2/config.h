// The settings of a checkpoint of GPT-2, gpt_bigcode (StarCoder) or GPT (the first), read from
// config.json and checked. Owns: names, defaults and relations of the keys. Never: weights. Source:
// transformers configuration_{gpt2,gpt_bigcode,openai}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/activation.h"

namespace strata::models {

struct Gpt2Config {
  std::string layer_class = "GPT2Block";
  std::string architecture = "GPT2LMHeadModel";
  std::string tokens = "transformer.wte", positions = "transformer.wpe";  // the modules
  std::vector<std::string> lora_targets = {"c_attn"};  // PEFT's; empty: it has none
  std::vector<std::string> ia3_targets = {"c_attn", "mlp.c_proj"};
  std::vector<std::string> ia3_feedforward = {"mlp.c_proj"};
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 3072;  // default: 4 * n_embd
  nn::Activation activation = nn::Activation::kGeluTanh;
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
  // The file holds matrices as [in, out] (transformers' Conv1D).
  bool has_conv1d = true;
  // One head of keys and values for all; else as many as queries, of gpt_bigcode head by head.
  bool multi_query = false;
  bool interleaved = false;
  // The reference keeps its causal mask, a byte for each pair of positions.
  bool keeps_mask = false;
  // Norms are of sums, behind attention and MLP, and there is none before the output layer.
  bool norms_come_last = false;
  std::optional<double> matrix_range = {};  // of initial values in layers, whatever the file says
  int64_t buffer_numel = 0;                 // of the reference's buffers in the type of the weights
  int64_t buffer_bytes = 0;                 // of its others
  int64_t num_labels = 0;  // that a head gives a document in place of the output layer; 0: none
  // The output layer has a weight of its own, whatever config.json says of ties.
  bool has_own_head = false;

  int64_t head_dim() const { return n_embd / n_head; }
  int64_t num_kv_heads() const { return multi_query ? 1 : n_head; }
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
Gpt2Config parse_gpt2_config(const Json& config);
Gpt2Config parse_gpt_bigcode_config(const Json& config);
Gpt2Config parse_openai_gpt_config(const Json& config);

// Whether the file of a model with this config.json holds the weight as [in, out], not [out, in].
bool is_conv1d_weight(const Json& config, const std::string& name);

}  // namespace strata::models
