// Settings of Apertus: an MLP without a gate whose activation trains, norms of the heads, norms
// under names of their own. Source: transformers configuration_apertus.py.
#include <string>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/llama/plain_mlp.h"
#include "strata/models/llama/relatives.h"
#include "strata/models/plain_activation.h"

namespace strata::models {
namespace {

constexpr double kTheta = 12000000.0;

}  // namespace

PlainMlpConfig parse_apertus_config(const Json& json) {
  const Json complete = with_llama3_positions(json, kTheta, /*factor=*/8.0);
  const ConfigReader config(complete);
  PlainMlpConfig result;
  LlamaConfig& c = result.llama;
  c.layer_class = "ApertusDecoderLayer";
  c.architecture = "ApertusForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.vocab_size = 131072;
  c.intermediate_size = 14336;
  c.max_position_embeddings = 65536;
  c.rms_norm_eps = 1e-5;
  c.layer_norms = {{NormPlace::kAttentionInput, "attention_layernorm"},
                   {NormPlace::kMlpInput, "feedforward_layernorm"}};
  c.head_norms = true;
  // There is no gate; what the activation is, is read below.
  c.gate = ops::GateKind::kGeluTanh;
  parse_common(config, c);
  parse_default_padding_id(config, c, 3);
  result.activation.reset();
  if (config.text("hidden_act", "xielu") != "xielu") {
    result.activation = parse_activation(config, "hidden_act", "xielu");
  }
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, kTheta);
  return result;
}

}  // namespace strata::models
