// Settings of Mellum 2: Qwen3-MoE with a window in the layers that a list names, and rotations by
// kind of layer. Source: transformers configuration_mellum.py, modeling_mellum.py.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// Which the reference passes over or takes for settings of all layers, and then fails.
void refuse_older_keys(const ConfigReader& config) {
  for (const char* key : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) {
    if (!config.has(key)) continue;
    throw ConfigError(
        "config.json: found {} in a mellum model, expected rope_parameters by kind of layer, which "
        "alone transformers reads there; fix the file",
        key);
  }
}

// Without a list all layers are global, whatever the window.
std::vector<int64_t> read_windows(const ConfigReader& config, int64_t num_layers) {
  if (!config.has("layer_types")) return {};
  auto windows = parse_windows(config, num_layers, /*period=*/1, /*default_window=*/1024);
  if (std::ranges::count(windows, 0) == std::ssize(windows)) windows.clear();
  return windows;
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "MellumDecoderLayer";
  c.architecture = "MellumForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.ignored_prefixes = {"mtp."};  // layers that predict further tokens
  c.vocab_size = 98304;
  c.hidden_size = 2304;
  c.intermediate_size = 7168;
  c.num_hidden_layers = 28;
  c.max_position_embeddings = 131072;
  c.head_norms = true;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 4);
  parse_head_dim(config, c);
  if (!config.json().contains("head_dim")) c.head_dim = 128;  // null is what remains
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.windows = read_windows(config, c.num_hidden_layers);
  check_relations(c);
  refuse_older_keys(config);
  parse_rotations(config, c, {.global = 500000.0, .local = 10000.0});
  return c;
}

}  // namespace

MixtureConfig parse_mellum_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  c.num_experts = read_num_experts(config, "num_experts", 64);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 896);
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 8),
              .normalizes = config.boolean("norm_topk_prob", true)};
  c.has_experts = read_sparse_layers(config, c.llama.num_hidden_layers, /*num_dense=*/0);
  check_router(c.router.experts_per_token, c.num_experts, "num_experts");
  return c;
}

}  // namespace strata::models
