// Settings of Nemotron (Minitron, Nemotron-4) and Jais 2: the square of relu, norms with biases, in
// Nemotron with weights that count from 1. Source: transformers configuration_{nemotron,jais2}.py.
#include "strata/base/error.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {
namespace {

// What both read alike. `c` holds the family's defaults, also of biases.
void parse_squared(const ConfigReader& config, RotaryDecoderConfig& c, const std::string& eps_key) {
  c.has_gated_mlp = false;
  c.num_hidden_layers = 32;
  parse_rotary_common(config, c, eps_key);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", c.num_attention_heads);
  parse_rotary_heads(config, c);
  c.activation = parse_activation(config, "hidden_act", "relu2");
  c.input_bias = c.output_bias = config.boolean("attention_bias", c.input_bias);
  c.mlp_bias = config.boolean("mlp_bias", c.mlp_bias);
  refuse_windows(config, c.num_hidden_layers);
}

}  // namespace

RotaryDecoderConfig parse_nemotron_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "NemotronDecoderLayer";
  c.architecture = "NemotronForCausalLM";
  c.norm_affine = nn::LayerNormAffine::kDistanceAndBias;
  c.vocab_size = 256000;
  c.hidden_size = 6144;
  c.intermediate_size = 24576;
  c.num_attention_heads = 48;
  c.max_position_embeddings = 4096;
  c.initializer_range = 0.0134;
  parse_squared(config, c, "norm_eps");
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.5});
  return c;
}

RotaryDecoderConfig parse_jais2_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "Jais2DecoderLayer";
  c.architecture = "Jais2ForCausalLM";
  c.vocab_size = 150272;
  c.hidden_size = 3328;
  c.intermediate_size = 26624;
  c.num_attention_heads = 26;
  c.max_position_embeddings = 8192;
  c.input_bias = c.mlp_bias = true;
  parse_squared(config, c, "layer_norm_eps");
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings});
  return c;
}

}  // namespace strata::models
