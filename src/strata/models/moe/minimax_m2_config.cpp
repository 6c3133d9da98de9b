// Settings of MiniMax-M2: q and k are normalised with all their heads at once, a part of a head
// turns, sigmoids and a correction choose the experts of every layer.
// Source: transformers configuration_minimax_m2.py, modeling_minimax_m2.py.
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

constexpr double kTheta = 5000000.0;

// Published files say how many channels turn, under another key.
double default_rotary_part(const ConfigReader& config, const LlamaConfig& c) {
  if (!config.has("rotary_dim")) return 1.0;
  return static_cast<double>(config.positive_integer("rotary_dim", c.head_dim)) /
         static_cast<double>(c.head_dim);
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "MiniMaxM2DecoderLayer";
  c.architecture = "MiniMaxM2ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"block_sparse_moe.gate"};
  c.vocab_size = 200064;
  c.hidden_size = 3072;
  c.intermediate_size = 1536;
  c.num_hidden_layers = 62;
  c.num_attention_heads = 48;
  c.max_position_embeddings = 196608;
  c.row_norms = true;
  parse_common(config, c);
  c.num_key_value_heads = config.positive_integer("num_key_value_heads", 8);
  c.head_dim = config.positive_integer("head_dim", 128);
  refuse_windows(config, c.num_hidden_layers);
  check_relations(c);
  c.rope = parse_rope(config, {.head_dim = c.head_dim,
                               .max_position_embeddings = c.max_position_embeddings,
                               .default_theta = kTheta,
                               .default_part = default_rotary_part(config, c)});
  return c;
}

}  // namespace

MixtureConfig parse_minimax_m2_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  name_as_mixtral(c);
  require_text(config, "scoring_func", "sigmoid");
  refuse_router_noise(config);
  c.num_experts = read_num_experts(config, "num_local_experts", 256);
  c.intermediate_size = c.llama.intermediate_size;
  c.sigmoid_router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 8),
                      .normalizes = true};
  check_router(c.sigmoid_router->experts_per_token, c.num_experts, "num_local_experts");
  c.correction_name = "e_score_correction_bias";
  c.balances_logits = true;
  c.router_comes_first = true;
  c.has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  return c;
}

}  // namespace strata::models
