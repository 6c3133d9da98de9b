// Settings of the dense ERNIE 4.5: channels turn with their neighbours, one key says whether linear
// layers have biases. Source: transformers configuration_ernie4_5.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {

LlamaConfig parse_ernie4_5_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "Ernie4_5DecoderLayer";
  c.architecture = "Ernie4_5ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 103424;
  c.hidden_size = 1024;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 18;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.tie_word_embeddings = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 0);
  c.attention_dropout = 0;  // whatever the key says, as in the reference
  c.num_key_value_heads = key_value_heads(config, c, 2);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.input_bias = c.output_bias = c.mlp_bias = config.boolean("use_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/500000.0);
  c.rope.pairs = ops::RopePairs::kNeighbours;
  return c;
}

}  // namespace strata::models
