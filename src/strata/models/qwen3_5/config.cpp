#include "strata/models/qwen3_5/config.h"

#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

LlamaConfig defaults(const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = {};  // PEFT has none
  c.ia3_targets = {};
  c.ia3_feedforward = {};
  c.ignored_prefixes = {"mtp.", "model.visual."};
  c.has_states = true;
  c.vocab_size = 248320;
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.num_attention_heads = 16;
  c.max_position_embeddings = 32768;
  c.norm_kind = ops::RmsNormKind::kGemma;
  c.head_norms = true;
  return c;
}

std::vector<bool> parse_kinds(const ConfigReader& config, int64_t num_layers) {
  const auto kinds =
      read_two_kinds(config, "layer_types", num_layers, {"linear_attention"}, {"full_attention"});
  if (kinds) return *kinds;
  std::vector<bool> is_linear;
  const int64_t interval = config.positive_integer("full_attention_interval", 4);
  for (int64_t i = 1; i <= num_layers; ++i) is_linear.push_back(i % interval != 0);
  return is_linear;
}

nn::DeltaShape parse_delta(const ConfigReader& config) {
  const nn::DeltaShape shape{
      .num_key_heads = config.positive_integer("linear_num_key_heads", 16),
      .num_value_heads = config.positive_integer("linear_num_value_heads", 32),
      .key_dim = config.positive_integer("linear_key_head_dim", 128),
      .value_dim = config.positive_integer("linear_value_head_dim", 128)};
  if (shape.num_value_heads % shape.num_key_heads == 0) return shape;
  throw FormatError(
      "config.json: found linear_num_value_heads = {}, expected a multiple of "
      "linear_num_key_heads = {}; fix the file",
      shape.num_value_heads, shape.num_key_heads);
}

// `c.llama` holds the family's defaults.
void parse_all(const ConfigReader& config, Qwen35Config& c) {
  LlamaConfig& llama = c.llama;
  const int64_t key_value_heads = llama.num_key_value_heads;
  parse_common(config, llama);
  llama.num_key_value_heads = config.positive_integer("num_key_value_heads", key_value_heads);
  llama.head_dim = config.positive_integer("head_dim", 256);
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  c.is_linear = parse_kinds(config, llama.num_hidden_layers);
  c.delta = parse_delta(config);
  c.conv_size = config.positive_integer("linear_conv_kernel_dim", 4);
  check_relations(llama);
  llama.rope = parse_rope(config, {.head_dim = llama.head_dim,
                                   .max_position_embeddings = llama.max_position_embeddings,
                                   .default_part = 0.25});
}

struct ExpertDefaults {
  int64_t count, per_token;
};

// Call when c.llama is read.
void parse_mixture(const ConfigReader& config, const ExpertDefaults& defaults, Qwen35Config& c) {
  c.llama.never_quantized = {"mlp.gate"};
  MixtureConfig m;
  m.llama = c.llama;
  m.num_experts = read_num_experts(config, "num_experts", defaults.count);
  m.intermediate_size = config.positive_integer("moe_intermediate_size", 512);
  m.router = {
      .experts_per_token = config.positive_integer("num_experts_per_tok", defaults.per_token),
      .normalizes = true};
  m.router_comes_first = true;
  m.shared_intermediate_size = config.positive_integer("shared_expert_intermediate_size", 512);
  check_router(m.router.experts_per_token, m.num_experts, "num_experts");
  c.mixture = m;
}

}  // namespace

Qwen35Config parse_qwen3_5_config(const Json& json) {
  Qwen35Config c;
  c.llama = defaults("Qwen3_5");
  c.llama.num_key_value_heads = 4;
  parse_all(ConfigReader(json), c);
  return c;
}

Qwen35Config parse_qwen3_5_moe_config(const Json& json) {
  const ConfigReader config(json);
  Qwen35Config c;
  c.llama = defaults("Qwen3_5Moe");
  c.llama.hidden_size = 2048;
  c.llama.num_hidden_layers = 40;
  c.llama.num_key_value_heads = 2;
  parse_all(config, c);
  parse_mixture(config, {.count = 256, .per_token = 8}, c);
  c.mixture->has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  return c;
}

Qwen35Config parse_qwen3_next_config(const Json& json) {
  const ConfigReader config(json);
  Qwen35Config c;
  c.llama = defaults("Qwen3Next");
  c.llama.vocab_size = 151936;
  c.llama.hidden_size = 2048;
  c.llama.intermediate_size = 5632;
  c.llama.num_hidden_layers = 48;
  c.llama.num_key_value_heads = 2;
  c.has_fused_inputs = true;
  parse_all(config, c);
  parse_mixture(config, {.count = 512, .per_token = 10}, c);
  c.mixture->router.normalizes = config.boolean("norm_topk_prob", true);
  c.mixture->has_experts = read_mixture_layers(config, c.llama.num_hidden_layers);
  return c;
}

}  // namespace strata::models
