// Settings of OLMo 1 and 1.7: norms without parameters, q, k and v up to a limit. Source:
// transformers configuration_olmo.py, modeling_olmo.py.
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {

RotaryDecoderConfig parse_olmo_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "OlmoDecoderLayer";
  c.architecture = "OlmoForCausalLM";
  c.norm_affine = nn::LayerNormAffine::kNone;
  c.vocab_size = 50304;
  c.hidden_size = 4096;
  c.intermediate_size = 11008;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.max_position_embeddings = 2048;
  c.pad_token_id = 1;
  parse_rotary_common(config, c, /*eps_key=*/"");
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", c.num_attention_heads);
  parse_rotary_heads(config, c);
  require_activation(config, "hidden_act", {"silu", "swish"});
  refuse_windows(config, c.num_hidden_layers);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  if (config.has("clip_qkv")) c.qkv_limit = config.positive_number("clip_qkv", 1);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings});
  return c;
}

}  // namespace strata::models
