// Settings of StarCoder 2. Source: transformers configuration_starcoder2.py.
#include "strata/models/plain_activation.h"
#include "strata/models/rope_config.h"
#include "strata/models/rotary_decoder/config.h"
#include "strata/models/rotary_decoder/config_parts.h"

namespace strata::models {

RotaryDecoderConfig parse_starcoder2_config(const Json& json) {
  const ConfigReader config(json);
  RotaryDecoderConfig c;
  c.layer_class = "Starcoder2DecoderLayer";
  c.architecture = "Starcoder2ForCausalLM";
  c.mlp_input_name = "c_fc";
  c.mlp_output_name = "c_proj";
  c.has_gated_mlp = false;
  c.vocab_size = 49152;
  c.hidden_size = 3072;
  c.intermediate_size = 12288;
  c.num_hidden_layers = 30;
  c.num_attention_heads = 24;
  c.max_position_embeddings = 4096;
  c.initializer_range = 0.018042;
  c.tie_word_embeddings = true;
  parse_rotary_common(config, c, "norm_epsilon");
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 2);
  parse_rotary_heads(config, c);
  c.activation = parse_activation(config, "hidden_act", "gelu_pytorch_tanh");
  c.input_bias = c.output_bias = c.mlp_bias = config.boolean("use_bias", true);
  c.attention_output_dropout = c.mlp_dropout = config.dropout_rate("residual_dropout", 0.0);
  c.embedding_dropout = config.dropout_rate("embedding_dropout", 0.0);
  if (config.has("sliding_window")) {
    c.windows.assign(static_cast<size_t>(c.num_hidden_layers),
                     config.positive_integer("sliding_window", 1));
  }
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings});
  return c;
}

}  // namespace strata::models
