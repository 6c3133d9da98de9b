// The settings of a checkpoint of Llama or of a family with its blocks (Mistral, Qwen2, Qwen3,
// Phi-3, SmolLM3, Granite, Gemma, OLMo, GLM), read from config.json and checked. Owns: names,
// defaults and relations of the keys. Never: weights. Source: transformers
// configuration_{llama,mistral,qwen2,qwen3,phi3,smollm3,granite,gemma,gemma2,gemma3,olmo2,olmo3,glm,glm4}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/attention/rope.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::models {

// What a norm of a layer normalises: what attention or MLP read, or what they give, before it joins
// the residual branch.
enum class NormPlace { kAttentionInput, kMlpInput, kAttentionOutput, kMlpOutput };

struct LayerNorm {
  NormPlace place;
  std::string name;  // of the module in the layer
};

struct LlamaConfig {
  std::string layer_class = "LlamaDecoderLayer";
  std::string architecture = "LlamaForCausalLM";
  std::vector<std::string> lora_targets = {"q_proj", "v_proj"};  // PEFT's; empty: it has none
  std::vector<std::string> ia3_targets = {"k_proj", "v_proj", "down_proj"};
  std::vector<std::string> ia3_feedforward = {"down_proj"};
  std::vector<std::string> never_quantized = {};  // ends of the paths of linear layers
  bool names_mean_experts = false;                // as Model::names_mean_experts()
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
  std::optional<double> embedding_range;  // of the embedding, by default the same
  std::optional<std::string> zeros;       // how names of weights end that begin as zeros
  bool input_bias = false;                // of q_proj, k_proj, v_proj
  bool output_bias = false;               // of o_proj
  bool head_norms = false;  // q and k are normalised head by head before they are rotated
  bool row_norms = false;   // q and k are normalised with all their heads at once instead
  bool mlp_bias = false;
  double attention_dropout = 0;           // of the probabilities, while training
  std::optional<double> attention_scale;  // default: 1 / sqrt(head_dim)
  double embedding_multiplier = 1.0;      // of what the first layer gets
  double residual_multiplier = 1.0;       // of what attention and MLP add
  double logits_scaling = 1.0;            // logits are divided by it
  bool attention_sinks = false;           // a number a head among the scores
  // Of what attention gives, before o_proj: a layer of the attention whose sigmoid it is. Empty:
  // none.
  std::string attention_gate = {};
  bool is_causal = true;         // a token sees those before it alone
  double attention_softcap = 0;  // of scores, 0: none (ops/attention/biased_attention.h)
  double logit_softcap = 0;      // of logits, 0: none
  ops::RmsNormKind norm_kind = ops::RmsNormKind::kLlama;  // of all norms
  // Norms of a layer's inputs and before the output layer have no weights, and the embedding's rows
  // are normalised, too.
  bool unit_norms = false;
  ops::GateKind gate = ops::GateKind::kSilu;  // of the MLP
  bool fused_gate_up = false;                 // gate and up of it are one matrix, of silu
  double embedding_scale = 1.0;               // of the rows of the embedding
  // In the reference's order.
  std::vector<LayerNorm> layer_norms = {{NormPlace::kAttentionInput, "input_layernorm"},
                                        {NormPlace::kMlpInput, "post_attention_layernorm"}};
  bool norms_come_first = false;                 // before the MLP, among the parameters
  std::string embedding = "model.embed_tokens";  // the module
  std::string final_norm = "model.norm";         // the module before the output layer
  bool tie_word_embeddings = false;
  int64_t num_labels = 0;     // that a head gives a document in place of the output layer; 0: none
  bool has_own_head = false;  // in the file of the weights, although config.json ties
  std::optional<int64_t> pad_token_id;  // this embedding row receives no gradient
  std::vector<int64_t> windows;  // of each layer, ops/attention/attention.h; empty: none anywhere
  std::vector<bool> rotates;     // of each layer; empty: all have positions
  bool has_rope_table = true;    // in the reference
  int64_t num_idle_tables = 0;   // of its, beside those that turn something
  int64_t buffer_numel = 0;      // of its other buffers, in the type of the weights
  // After the last, in files alone: layers that predict further tokens (GLM-4.5).
  int64_t num_ignored_layers = 0;
  std::vector<std::string> ignored_prefixes = {};  // of other tensors that files hold for nothing
  bool has_latents =
      false;                // keys and values are made of fewer channels, and no prefix before them
  bool has_states = false;  // some layers have a state in the place of keys and values
  nn::RopeOptions rope;
  std::optional<nn::RopeOptions> local_rope;  // of layers with a window, where they have their own
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot (hidden_act, rope types).
LlamaConfig parse_llama_config(const Json& config);
LlamaConfig parse_mistral_config(const Json& config);
LlamaConfig parse_qwen2_config(const Json& config);
LlamaConfig parse_qwen3_config(const Json& config);
LlamaConfig parse_phi3_config(const Json& config);
LlamaConfig parse_smollm3_config(const Json& config);
LlamaConfig parse_granite_config(const Json& config);
LlamaConfig parse_gemma_config(const Json& config);
LlamaConfig parse_gemma2_config(const Json& config);
LlamaConfig parse_gemma3_text_config(const Json& config);
LlamaConfig parse_olmo2_config(const Json& config);
LlamaConfig parse_olmo3_config(const Json& config);
LlamaConfig parse_glm_config(const Json& config);
LlamaConfig parse_glm4_config(const Json& config);

}  // namespace strata::models
