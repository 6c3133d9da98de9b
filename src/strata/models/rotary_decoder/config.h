// The settings of a checkpoint of StarCoder 2, Command R (Cohere), Phi, Persimmon, StableLM, OLMo,
// Nemotron or Jais 2, and of GPT-J, CodeGen or GPT-Neo, which have other names and the latter
// learned positions, read from config.json and checked. Owns: names, defaults and relations of the
// keys. Never: weights. Source: transformers
// configuration_{starcoder2,cohere,cohere2,phi,persimmon,stablelm,olmo,nemotron,jais2,gptj,codegen,gpt_neo}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/head_norm.h"
#include "strata/nn/layer_norm.h"

namespace strata::models {

struct RotaryDecoderConfig {
  std::string layer_class;
  std::string architecture;
  std::vector<std::string> lora_targets = {};  // PEFT's; empty: it has none
  std::vector<std::string> vera_targets = {};
  std::vector<std::string> ia3_targets = {};
  std::vector<std::string> ia3_feedforward = {};
  // Modules of the body and of a layer, and the norm after the last.
  std::string embedding_name = "model.embed_tokens";
  std::string layers_name = "model.layers";
  std::string attention_name = "self_attn";
  std::string norm_names[2] = {"input_layernorm", "post_attention_layernorm"};
  std::string output_name = "o_proj";      // of attention
  std::string mlp_input_name = "up_proj";  // beside "gate_proj" where the MLP is gated
  std::string mlp_output_name = "down_proj";
  std::string head_norm_names[2] = {"q_norm", "k_norm"};
  std::string final_norm_name = "model.norm";
  bool norms_come_first = false;    // among a layer's parameters, each before what reads it
  bool queries_come_third = false;  // after k and v
  int64_t fused_parts = 0;  // of the heads, in one matrix, each as q, v, k; 0: three matrices
  std::string fused_name = "qkv_proj";
  bool values_come_last = false;                                        // of each such part
  std::vector<std::string> ignored_suffixes = {"rotary_emb.inv_freq"};  // as TiedDecoder's

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool input_bias = false;   // of q_proj, k_proj, v_proj
  bool output_bias = false;  // of attention's output layer
  bool mlp_bias = false;
  bool head_bias = false;  // of the output layer of the model
  nn::LayerNormAffine norm_affine = nn::LayerNormAffine::kWeightAndBias;  // of all but heads' norms
  std::optional<nn::HeadNormWeights> head_norms;  // of q and k before they are rotated
  double qkv_limit = 0;       // of the sizes of q, k and v before they are rotated; 0: none
  bool is_parallel = false;   // attention and MLP read the same norm; else one after the other
  bool has_gated_mlp = true;  // with silu; else `activation`
  nn::Activation activation = nn::Activation::kSilu;
  std::optional<double> attention_scale;  // default: 1 / sqrt(head_dim)
  // While training: of the probabilities, of what attention and MLP add, of embedded tokens.
  double attention_dropout = 0;
  double attention_output_dropout = 0;
  double mlp_dropout = 0;
  double embedding_dropout = 0;
  double logit_scale = 1;  // logits are multiplied by it
  bool tie_word_embeddings = false;
  int64_t num_labels = 0;     // that a head gives a document in place of the output layer; 0: none
  bool has_own_head = false;  // in the file of the weights, although config.json ties
  std::optional<int64_t> pad_token_id;  // this embedding row receives no gradient
  std::vector<int64_t> windows;  // of each layer, ops/attention/attention.h; empty: none anywhere
  std::vector<bool> rotates;     // of each layer; empty: all have positions
  std::optional<nn::RopeOptions> rope;  // nothing: positions are learned
  int64_t buffer_bytes = 0;             // of other buffers in the reference than rotary tables
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
RotaryDecoderConfig parse_starcoder2_config(const Json& config);
RotaryDecoderConfig parse_cohere_config(const Json& config);
RotaryDecoderConfig parse_cohere2_config(const Json& config);
RotaryDecoderConfig parse_phi_config(const Json& config);
RotaryDecoderConfig parse_persimmon_config(const Json& config);
RotaryDecoderConfig parse_stablelm_config(const Json& config);
RotaryDecoderConfig parse_olmo_config(const Json& config);
RotaryDecoderConfig parse_nemotron_config(const Json& config);
RotaryDecoderConfig parse_jais2_config(const Json& config);
RotaryDecoderConfig parse_gptj_config(const Json& config);
RotaryDecoderConfig parse_codegen_config(const Json& config);
RotaryDecoderConfig parse_gpt_neo_config(const Json& config);

}  // namespace strata::models
