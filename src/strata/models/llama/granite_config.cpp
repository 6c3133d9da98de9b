// Settings of Granite: Llama's layer with four multipliers.
// Source: transformers configuration_granite.py.
#include "strata/models/llama/granite_config.h"

#include "strata/models/llama/config_parts.h"

namespace strata::models {

void parse_granite_multipliers(const ConfigReader& config, LlamaConfig& c) {
  // One of null is none: scores are scaled as usual then.
  const bool is_null =
      config.json().contains("attention_multiplier") && !config.has("attention_multiplier");
  if (!is_null) c.attention_scale = config.positive_number("attention_multiplier", 1.0);
  c.embedding_multiplier = config.positive_number("embedding_multiplier", 1.0);
  c.residual_multiplier = config.positive_number("residual_multiplier", 1.0);
  c.logits_scaling = config.positive_number("logits_scaling", 1.0);
}

LlamaConfig parse_granite_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "GraniteDecoderLayer";
  c.architecture = "GraniteForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  parse_granite_multipliers(config, c);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return c;
}

}  // namespace strata::models
