// Settings of Seed-OSS: biases of q, k, v apart from that of the output, dropout of what attention
// and MLP add. Source: transformers configuration_seed_oss.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/extended_layer.h"

namespace strata::models {

ExtendedConfig parse_seed_oss_config(const Json& json) {
  const ConfigReader config(json);
  ExtendedConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "SeedOssDecoderLayer";
  c.architecture = "SeedOssForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 155136;
  c.intermediate_size = 27648;
  c.num_hidden_layers = 64;
  c.num_attention_heads = 80;
  c.max_position_embeddings = 524288;
  parse_common(config, c);
  parse_default_padding_id(config, c, 1);
  c.attention_dropout = config.dropout_rate("attention_dropout", 0.1);
  result.residual_dropout = config.dropout_rate("residual_dropout", 0.1);
  c.num_key_value_heads = key_value_heads(config, c, 8);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.input_bias = config.boolean("attention_bias", true);
  c.output_bias = config.boolean("attention_out_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return result;
}

}  // namespace strata::models
