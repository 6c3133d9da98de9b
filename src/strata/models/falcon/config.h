// The settings of a checkpoint of Falcon, BLOOM or MPT, read from config.json and checked. Owns:
// names, defaults and relations of the keys. Never: weights. Source: transformers
// configuration_{falcon,bloom,mpt}.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/layer_norm.h"

namespace strata::models {

// Where the norms of a layer stand, by the names of their modules.
enum class FalconNorms {
  kOne,       // input_layernorm, which attention and MLP read side by side
  kTwo,       // ln_attn and ln_mlp, of the block's input both
  kOneByOne,  // input_layernorm, then post_attention_layernorm of the sum after attention
};

// Names of modules, in a layer except for the first three.
struct FalconNames {
  std::string embedding = "transformer.word_embeddings";
  std::string layers = "transformer.h";
  std::string final_norm = "transformer.ln_f";
  std::string query_key_value = "self_attention.query_key_value";
  std::string dense = "self_attention.dense";
  std::string mlp_input = "mlp.dense_h_to_4h";
  std::string mlp_output = "mlp.dense_4h_to_h";
  std::string norms[2] = {"input_layernorm", "post_attention_layernorm"};  // except for kTwo
};

// How q, k and v lie in the rows of the one matrix, of as many heads of k and v as of q.
enum class FalconHeads { kOneBehindAnother, kSideBySide };

struct FalconConfig {
  std::string layer_class = "FalconDecoderLayer";
  std::string architecture = "FalconForCausalLM";
  FalconNames names;
  std::vector<std::string> lora_targets = {"query_key_value"};
  std::vector<std::string> ia3_targets = {"query_key_value", "dense_4h_to_h"};
  std::vector<std::string> ia3_feedforward = {"dense_4h_to_h"};
  int64_t vocab_size = 65024;
  int64_t hidden_size = 4544;
  int64_t intermediate_size = 18176;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 71;
  int64_t num_key_value_heads = 1;
  int64_t max_position_embeddings = 2048;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  nn::Activation activation = nn::Activation::kGelu;
  FalconHeads heads = FalconHeads::kOneBehindAnother;
  double qkv_limit = 0;                   // of the sizes of q, k and v; 0: none
  std::optional<double> attention_scale;  // default: 1 / sqrt(head_dim)
  bool has_spread_slopes = false;         // of ALiBi, as MPT's
  FalconNorms norms = FalconNorms::kOne;
  nn::LayerNormAffine norm_affine = nn::LayerNormAffine::kWeightAndBias;
  bool norms_come_first = false;        // among a layer's parameters, around attention
  bool has_embedding_norm = false;      // of the embedded tokens
  bool adds_to_norms = false;           // the residual is what attention, or the MLP, read
  bool has_biases = false;              // of all linear layers in a layer
  double score_dropout = 0;             // while training: of the probabilities
  double attention_output_dropout = 0;  // of what attention adds, one by one alone
  double hidden_dropout = 0;  // of what the MLP adds; side by side, of what both do together
  bool tie_word_embeddings = true;
  int64_t num_labels = 0;     // that a head gives a document in place of the output layer; 0: none
  bool has_own_head = false;  // in the file of the weights, although config.json ties
  std::optional<nn::RopeOptions> rope;  // nothing: ALiBi (nn/attention/alibi.h)

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

// FormatError naming the key for values of the wrong type or that contradict each other;
// ConfigError for what the reference can do and this program cannot.
FalconConfig parse_falcon_config(const Json& config);
FalconConfig parse_bloom_config(const Json& config);
FalconConfig parse_mpt_config(const Json& config);

}  // namespace strata::models
