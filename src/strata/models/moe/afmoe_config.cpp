// Settings of Arcee's Trinity: a gate behind attention, norms before and after attention and MLP,
// positions in layers with a window alone, experts that sigmoids choose after the first layers.
// Source: transformers configuration_afmoe.py, modeling_afmoe.py.
#include <cmath>

#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

void parse_windows_and_rotation(const ConfigReader& config, LlamaConfig& c) {
  const int64_t period =
      config.has("layer_types") ? 1 : config.positive_integer("global_attn_every_n_layers", 4);
  c.windows = parse_windows(config, c.num_hidden_layers, period, /*default_window=*/1024);
  for (const int64_t window : c.windows) c.rotates.push_back(window != 0);
  parse_positions(config, c);
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "AfmoeDecoderLayer";
  c.architecture = "AfmoeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.names_mean_experts = true;
  c.vocab_size = 200192;
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 16384;
  c.rms_norm_eps = 1e-5;
  c.norm_kind = ops::RmsNormKind::kOlmo;
  c.layer_norms = {{NormPlace::kAttentionInput, "input_layernorm"},
                   {NormPlace::kAttentionOutput, "post_attention_layernorm"},
                   {NormPlace::kMlpInput, "pre_mlp_layernorm"},
                   {NormPlace::kMlpOutput, "post_mlp_layernorm"}};
  c.norms_come_first = true;
  c.head_norms = true;
  c.attention_gate = "gate_proj";
  c.zeros = ".router.gate.weight";
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  if (config.boolean("mup_enabled", false)) {
    c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  }
  parse_windows_and_rotation(config, c);
  return c;
}

}  // namespace

MixtureConfig parse_afmoe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  for (const char* key : {"num_dense_layers", "num_experts", "num_experts_per_tok",
                          "num_shared_experts", "route_scale"}) {
    require_not_null(config, key);
  }
  c.num_experts = config.integer_up_to(kMostExperts, "num_experts", 64);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1408);
  c.sigmoid_router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 6),
                      .normalizes = true,
                      .scale = config.positive_number("route_scale", 1.0)};
  check_router(c.sigmoid_router->experts_per_token, c.num_experts, "num_experts");
  c.router_name = "router.gate";
  c.correction_name = "expert_bias";
  c.router_comes_first = c.shared_comes_second = true;
  add_shared_experts(c, config.positive_integer("num_shared_experts", 2));
  c.has_experts = layers_from(config.optional_integer("num_dense_layers").value_or(1),
                              c.llama.num_hidden_layers);
  return c;
}

}  // namespace strata::models
