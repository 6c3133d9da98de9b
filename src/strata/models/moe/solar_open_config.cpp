// Settings of Solar Open: Llama's attention, and GLM-4.5's experts in every layer. Source:
// transformers configuration_solar_open.py, modeling_solar_open.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "SolarOpenDecoderLayer";
  c.architecture = "SolarOpenForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.vocab_size = 196608;
  c.num_hidden_layers = 48;
  c.num_attention_heads = 64;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  require_not_null(config, {"num_key_value_heads", "head_dim"});
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 8);
  c.head_dim = config.positive_integer("head_dim", 128);
  c.input_bias = config.boolean("attention_bias", false);  // o_proj has none
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/1'000'000.0);
  return c;
}

}  // namespace

MixtureConfig parse_solar_open_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  c.num_experts = read_num_experts(config, "n_routed_experts", 128);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1280);
  c.sigmoid_router =
      read_sigmoid_router(config, c.num_experts, {.experts_per_token = 8, .normalizes = true});
  c.wide_router = true;
  add_shared_experts(c, config.positive_integer("n_shared_experts", 1));
  c.has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  return c;
}

}  // namespace strata::models
