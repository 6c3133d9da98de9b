// Settings of MPT: ALiBi, no biases, q, k and v side by side in one matrix and up to a limit.
// Source: transformers configuration_mpt.py, modeling_mpt.py.
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/falcon/config.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

void parse_sizes(const ConfigReader& config, FalconConfig& c) {
  const SizeNames hidden{"d_model", "hidden_size"}, layers{"n_layers", "num_hidden_layers"},
      heads{"n_heads", "num_attention_heads"};
  c.vocab_size = config.positive_integer("vocab_size", 50368);
  c.hidden_size = config.positive_integer(hidden.said(config), 2048);
  c.num_hidden_layers = config.num_layers(layers.said(config), 24);
  c.num_attention_heads = c.num_key_value_heads = config.positive_integer(heads.said(config), 16);
  c.max_position_embeddings = config.positive_integer("max_seq_len", 2048);
  c.intermediate_size = 4 * c.hidden_size;  // whatever expansion_ratio says, as in the reference
  if (c.hidden_size % c.num_attention_heads == 0) return;
  throw FormatError(
      "config.json: found d_model = {}, expected a multiple of n_heads = {}; fix the file",
      c.hidden_size, c.num_attention_heads);
}

// What the object attn_config says. Others of its keys the reference reads nowhere.
void parse_attention(const ConfigReader& config, FalconConfig& c) {
  if (!config.has("attn_config")) return;
  if (!config.at("attn_config").is_object()) {
    throw FormatError("config.json: found attn_config = {}, expected an object; fix the file",
                      dump_python(config.at("attn_config"), /*indent=*/-1));
  }
  const ConfigReader attention(config.at("attn_config"), "attn_config.");
  // One rate for the probabilities, for what attention adds and for what the MLP adds.
  c.score_dropout = c.attention_output_dropout = c.hidden_dropout =
      attention.dropout_rate("attn_pdrop", 0.0);
  if (attention.number("clip_qkv", 0) != 0) c.qkv_limit = attention.positive_number("clip_qkv", 1);
  if (attention.has("softmax_scale")) {
    c.attention_scale = attention.positive_number("softmax_scale", 1);
  }
}

}  // namespace

FalconConfig parse_mpt_config(const Json& json) {
  const ConfigReader config(json);
  FalconConfig c;
  c.layer_class = "MptBlock";
  c.architecture = "MptForCausalLM";
  c.names = {.embedding = "transformer.wte",
             .layers = "transformer.blocks",
             .final_norm = "transformer.norm_f",
             .query_key_value = "attn.Wqkv",
             .dense = "attn.out_proj",
             .mlp_input = "ffn.up_proj",
             .mlp_output = "ffn.down_proj",
             .norms = {"norm_1", "norm_2"}};
  c.lora_targets = {"Wqkv"};
  c.ia3_targets = c.ia3_feedforward = {};
  c.heads = FalconHeads::kSideBySide;
  c.has_spread_slopes = true;
  c.norms = FalconNorms::kOneByOne;
  c.norms_come_first = true;
  c.norm_affine = nn::LayerNormAffine::kWeight;
  parse_sizes(config, c);
  parse_attention(config, c);
  c.layer_norm_eps = config.positive_number("layer_norm_epsilon", c.layer_norm_eps);
  c.initializer_range = config.positive_number("initializer_range", c.initializer_range);
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  return c;
}

}  // namespace strata::models
