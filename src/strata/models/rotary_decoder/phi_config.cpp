// Settings of Phi-1, Phi-1.5 and Phi-2. Source: transformers configuration_phi.py.
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {
RotaryDecoderConfig parse_phi_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "PhiDecoderLayer";
  c.architecture = "PhiForCausalLM";
  c.lora_targets = {"q_proj", "v_proj", "fc1", "fc2"};
  c.vera_targets = {"q_proj", "v_proj"};
  c.ia3_targets = {"q_proj", "v_proj", "fc2"};
  c.ia3_feedforward = {"fc2"};
  c.output_name = "dense";
  c.mlp_input_name = "fc1";
  c.mlp_output_name = "fc2";
  c.head_norm_names[0] = "q_layernorm";
  c.head_norm_names[1] = "k_layernorm";
  c.final_norm_name = "model.final_layernorm";
  c.input_bias = c.output_bias = c.mlp_bias = c.head_bias = true;
  c.is_parallel = true;
  c.has_gated_mlp = false;
  c.vocab_size = 51200;
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 32;
  c.max_position_embeddings = 2048;
  parse_rotary_common(config, c, "layer_norm_eps");
  refuse_tie(c, "Phi");
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", c.num_attention_heads);
  parse_rotary_heads(config, c);
  c.activation = parse_activation(config, "hidden_act", "gelu_new");
  c.attention_output_dropout = c.mlp_dropout = config.dropout_rate("resid_pdrop", 0.0);
  c.embedding_dropout = config.dropout_rate("embd_pdrop", 0.0);
  if (config.boolean("qk_layernorm", false)) {
    refuse_other_head_dim(c, "Phi");
    c.head_norms = nn::HeadNormWeights::kShared;
  }
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.5});
  return c;
}

}  // namespace strata::models
