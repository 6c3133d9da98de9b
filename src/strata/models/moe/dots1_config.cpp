// Settings of dots.llm1: norms of heads, and DeepSeek-V3's experts after the first layers.
// Source: transformers configuration_dots1.py, modeling_dots1.py.
#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// Of the layers that layer_types names, else of those from max_window_layers on.
std::vector<int64_t> read_windows(const ConfigReader& config, int64_t num_layers) {
  const auto types = read_layer_types(config, num_layers);
  const bool is_null = config.json().contains("sliding_window") && !config.has("sliding_window");
  const int64_t window = config.positive_integer("sliding_window", 4096);
  const int64_t first = config.optional_integer("max_window_layers").value_or(62);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool has_window = types ? types->at(static_cast<size_t>(i)) : !is_null && i >= first;
    if (has_window && is_null) {
      throw FormatError(
          "config.json: found sliding_attention in layer_types and sliding_window = None, expected "
          "one of both; fix the file");
    }
    windows.push_back(has_window ? window : 0);
  }
  return windows;
}

LlamaConfig parse_layers(const ConfigReader& config) {
  LlamaConfig c;
  c.layer_class = "Dots1DecoderLayer";
  c.architecture = "Dots1ForCausalLM";
  c.lora_targets = c.ia3_targets = {};
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.vocab_size = 152064;
  c.hidden_size = 4608;
  c.intermediate_size = 10944;
  c.num_hidden_layers = 62;
  c.head_norms = true;
  parse_common(config, c);
  c.num_key_value_heads = key_value_heads(config, c, 32);
  parse_head_dim(config, c);
  c.input_bias = c.output_bias = config.boolean("attention_bias", false);
  c.windows = read_windows(config, c.num_hidden_layers);
  parse_positions(config, c);
  return c;
}

void require(const ConfigReader& config, const char* key) {
  if (config.has(key)) return;
  throw FormatError("config.json: found no {}, expected a number; add it to the file", key);
}

}  // namespace

MixtureConfig parse_dots1_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama = parse_layers(config);
  for (const char* key : {"n_shared_experts", "num_experts_per_tok"}) require(config, key);
  if (!config.has("num_local_experts")) require(config, "n_routed_experts");
  c.num_experts = read_num_experts(config, "n_routed_experts", 1);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1408);
  c.sigmoid_router =
      read_sigmoid_router(config, c.num_experts, {.experts_per_token = 1, .normalizes = false});
  c.wide_router = true;
  add_shared_experts(c, config.positive_integer("n_shared_experts", 1));
  require_not_null(config, "first_k_dense_replace");
  c.has_experts = layers_from(config.optional_integer("first_k_dense_replace").value_or(0),
                              c.llama.num_hidden_layers);
  return c;
}

}  // namespace strata::models
