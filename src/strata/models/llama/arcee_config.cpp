// Settings of AFM (Arcee): Llama's with an MLP without a gate. Source: transformers
// configuration_arcee.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/plain_mlp.h"
#include "strata/models/plain_activation.h"

namespace strata::models {

PlainMlpConfig parse_arcee_config(const Json& json) {
  const ConfigReader config(json);
  PlainMlpConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "ArceeDecoderLayer";
  c.architecture = "ArceeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.hidden_size = 2560;
  c.intermediate_size = 18432;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  // There is no gate; what the activation is, is read below.
  c.gate = ops::GateKind::kGeluTanh;
  parse_common(config, c);
  result.activation = parse_activation(config, "hidden_act", "relu2");
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.mlp_bias = config.boolean("mlp_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/true);
  return result;
}

}  // namespace strata::models
