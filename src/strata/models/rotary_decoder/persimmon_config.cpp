// Settings of Persimmon. Source: transformers configuration_persimmon.py.
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {

RotaryDecoderConfig parse_persimmon_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "PersimmonDecoderLayer";
  c.architecture = "PersimmonForCausalLM";
  c.fused_name = "query_key_value";
  c.values_come_last = true;
  c.output_name = "dense";
  c.mlp_input_name = "dense_h_to_4h";
  c.mlp_output_name = "dense_4h_to_h";
  c.head_norm_names[0] = "q_layernorm";
  c.head_norm_names[1] = "k_layernorm";
  c.final_norm_name = "model.final_layernorm";
  c.input_bias = c.output_bias = c.mlp_bias = true;
  c.has_gated_mlp = false;
  c.vocab_size = 262144;
  c.hidden_size = 4096;
  c.intermediate_size = 16384;
  c.num_hidden_layers = 36;
  c.num_attention_heads = 64;
  c.max_position_embeddings = 16384;
  parse_rotary_common(config, c, "layer_norm_eps");
  c.num_key_value_heads = c.fused_parts = c.num_attention_heads;
  parse_rotary_heads(config, c);
  refuse_other_head_dim(c, "Persimmon");
  c.activation = parse_activation(config, "hidden_act", "relu2");
  c.mlp_dropout = config.dropout_rate("hidden_dropout", 0.0);
  if (config.boolean("qk_layernorm", true)) c.head_norms = nn::HeadNormWeights::kShared;
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.5});
  return c;
}

}  // namespace strata::models
