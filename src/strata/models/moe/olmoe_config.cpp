// Settings of OLMoE: q and k are normalised with all their heads at once, q, k and v may be
// limited. Source: transformers configuration_olmoe.py, modeling_olmoe.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/moe/extended_mixture.h"

namespace strata::models {
namespace {

// The norms of q and k are as wide as the hidden size alone makes them.
void check_head_dim(const LlamaConfig& c) {
  if (c.head_dim * c.num_attention_heads == c.hidden_size) return;
  throw ConfigError(
      "config.json: found head_dim = {}, expected hidden_size / num_attention_heads = {}, without "
      "which transformers fails; remove the key",
      c.head_dim, c.hidden_size / c.num_attention_heads);
}

// Of a window some of transformers' ways to attend know, others not.
void refuse_window(const ConfigReader& config) {
  if (!config.has("sliding_window")) return;
  throw ConfigError(
      "config.json: found sliding_window = {} in an olmoe model, which has none; remove the key",
      dump_python(config.at("sliding_window"), /*indent=*/-1));
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "OlmoeDecoderLayer";
  c.architecture = "OlmoeForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.vocab_size = 50304;
  c.hidden_size = 2048;
  c.intermediate_size = 2048;
  c.num_hidden_layers = 16;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  c.row_norms = true;
  parse_common(config, c);
  parse_default_padding_id(config, c, 1);
  c.num_key_value_heads = key_value_heads(config, c, c.num_attention_heads);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  refuse_windows(config, c.num_hidden_layers);
  refuse_window(config);
  parse_positions(config, c, /*splits_hidden_size=*/true);
  check_head_dim(c);
  return c;
}

}  // namespace

ExtendedMixtureConfig parse_olmoe_config(const Json& json) {
  const ConfigReader config(json);
  ExtendedMixtureConfig c;
  c.mixture.llama = parse_layers(config);
  if (config.has("clip_qkv")) c.layer.qkv_limit = config.positive_number("clip_qkv", 1);
  MixtureConfig& mixture = c.mixture;
  mixture.num_experts = read_num_experts(config, "num_experts", 64);
  mixture.intermediate_size = mixture.llama.intermediate_size;
  mixture.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 8),
                    .normalizes = config.boolean("norm_topk_prob", false)};
  mixture.router_comes_first = true;
  mixture.has_experts.assign(static_cast<size_t>(mixture.llama.num_hidden_layers), true);
  check_router(mixture.router.experts_per_token, mixture.num_experts, "num_experts");
  return c;
}

}  // namespace strata::models
