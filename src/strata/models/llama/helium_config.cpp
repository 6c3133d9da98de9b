// Settings of Helium: channels turn with their neighbours, norms multiply in fp32. Source:
// transformers configuration_helium.py, modeling_helium.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/relatives.h"

namespace strata::models {

LlamaConfig parse_helium_config(const Json& json) {
  const ConfigReader config(json);
  LlamaConfig c;
  c.layer_class = "HeliumDecoderLayer";
  c.architecture = "HeliumForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.norm_kind = ops::RmsNormKind::kOlmo;
  c.vocab_size = 48000;
  c.hidden_size = 2560;
  c.intermediate_size = 7040;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 20;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-8;
  parse_common(config, c);
  parse_default_padding_id(config, c, 3);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 20);
  c.head_dim = config.positive_integer("head_dim", 128);
  c.input_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/100000.0);
  c.rope.pairs = ops::RopePairs::kNeighbours;
  if (c.head_dim * c.num_attention_heads == c.hidden_size) return c;
  throw FormatError(
      "config.json: found head_dim = {} of num_attention_heads = {}, expected hidden_size = {} "
      "channels together in a Helium model; fix the file",
      c.head_dim, c.num_attention_heads, c.hidden_size);
}

}  // namespace strata::models
