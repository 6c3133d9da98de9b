// Settings of Qwen2-MoE and Qwen3-MoE: experts in the layers that a step and a list name.
// Source: transformers configuration_{qwen2_moe,qwen3_moe}.py.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {
namespace {

// What both generations of Qwen share.
MixtureConfig parse_qwen_moe(const ConfigReader& config, const std::string& family) {
  MixtureConfig c;
  c.llama.layer_class = family + "DecoderLayer";
  c.llama.architecture = family + "ForCausalLM";
  c.llama.lora_targets = c.llama.ia3_targets = {};
  c.llama.never_quantized = {"mlp.gate"};
  c.llama.vocab_size = 151936;
  c.llama.hidden_size = 2048;
  c.llama.num_hidden_layers = 24;
  c.llama.max_position_embeddings = 32768;
  c.router.normalizes = config.boolean("norm_topk_prob", false);
  return c;
}

// Every second of the first layers has a window, unless the file lists them.
std::vector<int64_t> read_alternating_windows(const ConfigReader& config, const LlamaConfig& c) {
  const auto types = read_layer_types(config, c.num_hidden_layers);
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = is_used ? read_window(config, 4096) : std::nullopt;
  const int64_t end = config.optional_integer("max_window_layers").value_or(28);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const bool has_window =
        types ? types->at(static_cast<size_t>(i)) : is_used && i % 2 == 0 && i < end;
    if (has_window && !window) {
      throw FormatError(
          "config.json: found layers with sliding_attention and no sliding_window that "
          "use_sliding_window allows, expected both or none; fix the file");
    }
    windows.push_back(has_window ? *window : 0);
  }
  return std::ranges::count(windows, 0) == std::ssize(windows) ? std::vector<int64_t>{} : windows;
}

}  // namespace

std::vector<bool> read_mixture_layers(const ConfigReader& config, int64_t num_layers) {
  const int64_t step = config.positive_integer("decoder_sparse_step", 1);
  std::vector<bool> has_experts;
  for (int64_t i = 1; i <= num_layers; ++i) has_experts.push_back(i % step == 0);
  if (!config.has("mlp_only_layers")) return has_experts;
  const Json& list = config.at("mlp_only_layers");
  const auto is_layer = [&](const Json& entry) {
    return entry.is_number_integer() && entry.get<int64_t>() >= 0 &&
           entry.get<int64_t>() < num_layers;
  };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_layer)) {
    throw FormatError(
        "config.json: found mlp_only_layers = {}, expected a list of numbers of layers, 0 to {}; "
        "fix the file",
        dump_python(list, /*indent=*/-1), num_layers - 1);
  }
  for (const Json& entry : list) has_experts.at(entry.get<size_t>()) = false;
  return has_experts;
}

MixtureConfig parse_qwen3_moe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c = parse_qwen_moe(config, "Qwen3Moe");
  c.llama.intermediate_size = 6144;
  parse_common(config, c.llama);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, 4);
  parse_head_dim(config, c.llama);
  c.llama.head_norms = true;
  c.llama.input_bias = c.llama.output_bias = config.boolean("attention_bias", false);
  const bool has_window = config.boolean("use_sliding_window", false);
  c.llama.windows =
      same_windows(config, c.llama, has_window ? read_window(config, 4096) : std::nullopt);
  c.num_experts = read_num_experts(config, "num_experts", 128);
  c.router.experts_per_token = config.positive_integer("num_experts_per_tok", 8);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 768);
  c.has_experts = read_mixture_layers(config, c.llama.num_hidden_layers);
  check_router(c.router.experts_per_token, c.num_experts, "num_experts");
  parse_positions(config, c.llama);
  return c;
}

MixtureConfig parse_qwen2_moe_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c = parse_qwen_moe(config, "Qwen2Moe");
  c.llama.intermediate_size = 5632;
  c.llama.num_attention_heads = 16;
  parse_common(config, c.llama);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, 16);
  parse_head_dim(config, c.llama);
  c.llama.input_bias = config.boolean("qkv_bias", true);
  c.llama.windows = read_alternating_windows(config, c.llama);
  c.num_experts = read_num_experts(config, "num_experts", 60);
  c.router.experts_per_token = config.positive_integer("num_experts_per_tok", 4);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", 1408);
  c.shared_intermediate_size = config.positive_integer("shared_expert_intermediate_size", 5632);
  c.router_comes_first = true;
  c.has_experts = read_mixture_layers(config, c.llama.num_hidden_layers);
  check_router(c.router.experts_per_token, c.num_experts, "num_experts");
  parse_positions(config, c.llama);
  return c;
}

}  // namespace strata::models
