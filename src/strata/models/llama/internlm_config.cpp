// Settings of InternLM3 and IQuest-Coder, models of other names that transformers computes as
// Llama. Source: transformers configuration_{internlm3,iquestcoder}.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"
#include "strata/models/size_names.h"

namespace strata::models {
namespace {

// What both read as Llama does. `c` holds the family's defaults, of heads of keys too.
void parse_as_llama(const ConfigReader& config, LlamaConfig& c) {
  const int64_t heads_of_keys = c.num_key_value_heads;
  c.lora_targets = c.ia3_targets = {};
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, heads_of_keys);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/true);
}

}  // namespace

LlamaConfig parse_internlm3_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.vocab_size = 128512;
  c.intermediate_size = 10240;
  c.num_hidden_layers = 48;
  c.num_key_value_heads = 2;
  c.max_position_embeddings = 32768;
  parse_as_llama(config, c);
  parse_default_padding_id(config, c, 2);
  const SizeNames of_attention{"attention_bias", "qkv_bias"}, of_mlp{"mlp_bias", "bias"};
  c.input_bias = c.output_bias = config.boolean(of_attention.said(config), false);
  c.mlp_bias = config.boolean(of_mlp.said(config), false);
  if (c.input_bias == c.mlp_bias) return c;
  throw FormatError(
      "config.json: found {} = {} and {} = {}, expected one value for both in an InternLM3 model; "
      "fix the file",
      of_attention.said(config), c.input_bias ? "True" : "False", of_mlp.said(config),
      c.mlp_bias ? "True" : "False");
}

LlamaConfig parse_iquestcoder_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.vocab_size = 76800;
  c.hidden_size = 5120;
  c.intermediate_size = 27648;
  c.num_hidden_layers = 80;
  c.num_attention_heads = 40;
  c.num_key_value_heads = 8;
  c.max_position_embeddings = 131072;
  parse_as_llama(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  if (!config.has("clip_qkv") && !config.boolean("use_sliding_window", false)) return c;
  throw ConfigError(
      "config.json: found {} in an IQuest-Coder model, expected none, as in transformers; use a "
      "checkpoint without it",
      config.has("clip_qkv") ? "clip_qkv" : "use_sliding_window = True");
}

}  // namespace strata::models
