// Settings of StableLM (StableLM 3B, StableLM 2, Zephyr 3B). Source: transformers
// configuration_stablelm.py.
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {

RotaryDecoderConfig parse_stablelm_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "StableLmDecoderLayer";
  c.architecture = "StableLmForCausalLM";
  c.lora_targets = c.vera_targets = {"q_proj", "v_proj"};
  c.head_norm_names[0] = "q_layernorm";
  c.head_norm_names[1] = "k_layernorm";
  c.vocab_size = 50304;
  c.hidden_size = 2560;
  c.intermediate_size = 6912;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.max_position_embeddings = 4096;
  parse_rotary_common(config, c, "layer_norm_eps");
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 32);
  parse_rotary_heads(config, c);
  refuse_other_head_dim(c, "StableLM");
  require_activation(config, "hidden_act", {"silu", "swish"});
  c.input_bias = config.boolean("use_qkv_bias", false);
  c.is_parallel = config.boolean("use_parallel_residual", false);
  c.mlp_dropout = config.dropout_rate("hidden_dropout", 0.0);
  if (config.boolean("qk_layernorm", false)) c.head_norms = nn::HeadNormWeights::kOfEachHead;
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.25});
  return c;
}

}  // namespace strata::models
