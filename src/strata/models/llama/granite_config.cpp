// Settings of Granite, Llama's layer with four multipliers, and of HyperCLOVA X, which adds norms
// after attention and MLP. Source: transformers configuration_{granite,hyperclovax}.py.
#include "strata/models/llama/granite_config.h"

#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

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

namespace {

LlamaConfig parse_granite_family(const ConfigReader& config, const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  parse_granite_multipliers(config, c);
  refuse_windows(config, c.num_hidden_layers);
  return c;
}

}  // namespace

LlamaConfig parse_granite_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_granite_family(config, "Granite");
  parse_positions(config, c);
  return c;
}

LlamaConfig parse_hyperclovax_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c = parse_granite_family(config, "HyperCLOVAX");
  if (!config.has("attention_multiplier")) c.attention_scale.reset();  // as usual
  c.logits_scaling = 1.0 / c.logits_scaling;                           // logits are multiplied
  if (config.boolean("use_post_norm", true)) {
    c.layer_norms.insert(c.layer_norms.end(), {{NormPlace::kAttentionOutput, "post_norm1"},
                                               {NormPlace::kMlpOutput, "post_norm2"}});
  }
  parse_positions(config, c, /*splits_hidden_size=*/true);
  return c;
}

}  // namespace strata::models
