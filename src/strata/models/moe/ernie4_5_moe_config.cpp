// Settings of ERNIE 4.5's mixtures: channels turn with their neighbours, softmaxes and a correction
// choose the experts of some layers, beside them an MLP of all tokens.
// Source: transformers configuration_ernie4_5_moe.py, modeling_ernie4_5_moe.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// The output layer's would be another parameter.
void refuse_biases(const ConfigReader& config) {
  if (!config.boolean("use_bias", false)) return;
  throw ConfigError(
      "config.json: found use_bias = true in an ernie4_5_moe model, expected false; use a "
      "checkpoint without biases");
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "Ernie4_5_MoeDecoderLayer";
  c.architecture = "Ernie4_5_MoeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.ignored_prefixes = {"model.mtp_"};  // layers that predict further tokens
  c.vocab_size = 103424;
  c.hidden_size = 2560;
  c.intermediate_size = 12288;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 20;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.tie_word_embeddings = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 0);
  c.attention_dropout = 0;  // whatever the key says, as in the reference
  c.num_key_value_heads = key_value_heads(config, c, 4);
  parse_head_dim(config, c);
  refuse_biases(config);
  refuse_windows(config, c.num_hidden_layers);
  parse_positions(config, c, /*splits_hidden_size=*/false, /*default_theta=*/500000.0);
  c.rope.pairs = ops::RopePairs::kNeighbours;
  return c;
}

// Every so many layers, from one on and up to one.
std::vector<bool> read_expert_layers(const ConfigReader& config, int64_t num_layers) {
  require_not_null(config, {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"});
  const int64_t interval = config.positive_integer("moe_layer_interval", 1);
  const int64_t start = config.optional_integer("moe_layer_start_index").value_or(1);
  const int64_t end = config.optional_integer("moe_layer_end_index").value_or(-1);
  std::vector<bool> has_experts;
  for (int64_t i = 0; i < num_layers; ++i) {
    has_experts.push_back((i + 1) % interval == 0 && i >= start && (end == -1 || i <= end));
  }
  return has_experts;
}

}  // namespace

MixtureConfig parse_ernie4_5_moe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  require_not_null(config, {"moe_num_experts", "moe_k", "moe_norm_min", "moe_num_shared_experts"});
  c.num_experts = read_num_experts(config, "moe_num_experts", 64, "num_experts");
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1536);
  c.corrected_router = {
      .experts_per_token = read_either(config, {"moe_k", "num_experts_per_tok"}, 6),
      .least_sum = config.positive_number("moe_norm_min", 1e-12)};
  check_router(c.corrected_router->experts_per_token, c.num_experts, "moe_num_experts");
  if (config.optional_integer("moe_num_shared_experts").value_or(2) != 0) {
    add_shared_experts(c, config.positive_integer("moe_num_shared_experts", 2));
  }
  c.correction_name = "gate.moe_statics.e_score_correction_bias";
  c.correction_is_row = true;
  c.balances_logits = true;
  c.wide_router = c.keeps_router = true;
  c.router_comes_first = true;
  c.has_experts = read_expert_layers(config, c.llama.num_hidden_layers);
  return c;
}

}  // namespace strata::models
