// Settings of GLM-4.5, GLM-4.5-Air and GLM-4.6: the first layers have an MLP, the others experts
// that sigmoids choose, beside an MLP of all tokens. Source: transformers
// configuration_glm4_moe.py, modeling_glm4_moe.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

LlamaConfig read_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "Glm4MoeDecoderLayer";
  c.architecture = "Glm4MoeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.vocab_size = 151552;
  c.intermediate_size = 10944;
  c.num_hidden_layers = 46;
  c.num_attention_heads = 96;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  parse_common(config, c);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 8);
  parse_head_dim(config, c);
  c.input_bias = config.boolean("attention_bias", false);
  c.head_norms = config.boolean("use_qk_norm", false);
  c.num_ignored_layers = read_num_prediction_layers(config);
  refuse_windows(config, c.num_hidden_layers);
  check_relations(c);
  c.rope = parse_rope(config, {c.head_dim, c.max_position_embeddings, /*default_theta=*/10000.0,
                               /*default_part=*/0.5});
  return c;
}

}  // namespace

MixtureConfig parse_glm4_moe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = read_layers(config);
  c.num_experts = read_num_experts(config, "n_routed_experts", 128);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1408);
  c.sigmoid_router =
      read_sigmoid_router(config, c.num_experts, {.experts_per_token = 8, .normalizes = true});
  c.wide_router = true;
  require_not_null(config, "first_k_dense_replace");
  add_shared_experts(c, config.positive_integer("n_shared_experts", 1));
  c.has_experts = layers_from(config.optional_integer("first_k_dense_replace").value_or(1),
                              c.llama.num_hidden_layers);
  return c;
}

}  // namespace strata::models
