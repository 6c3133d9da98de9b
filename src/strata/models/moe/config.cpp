#include "strata/models/moe/config.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"

namespace strata::models {

int64_t read_num_experts(const ConfigReader& config, const std::string& key, int64_t fallback,
                         const std::string& other_name) {
  const std::string usual = key == "num_local_experts" ? "num_experts" : "num_local_experts";
  const std::string other = other_name.empty() ? usual : other_name;
  const auto value = config.optional_integer(key), alias = config.optional_integer(other);
  if (value && alias && *value != *alias) {
    throw FormatError("config.json: found {} = {} and {} = {}, expected one number; fix the file",
                      key, *value, other, *alias);
  }
  const std::string& found = !value && alias ? other : key;
  return config.integer_up_to(kMostExperts, found, fallback);
}

int64_t read_either(const ConfigReader& config, const std::array<const char*, 2>& keys,
                    int64_t fallback) {
  const auto value = config.optional_integer(keys[0]), other = config.optional_integer(keys[1]);
  if (value && other && *value != *other) {
    throw FormatError("config.json: found {} = {} and {} = {}, expected one number; fix the file",
                      keys[0], *value, keys[1], *other);
  }
  return config.positive_integer(!value && other ? keys[1] : keys[0], fallback);
}

void refuse_router_noise(const ConfigReader& config) {
  if (const double noise = config.number("router_jitter_noise", 0); noise != 0) {
    throw ConfigError("config.json: found router_jitter_noise = {}, expected 0; set it to 0",
                      noise);
  }
}

void name_as_mixtral(MixtureConfig& c) {
  c.module = "block_sparse_moe";
  c.gate_name = "w1";
  c.up_name = "w3";
  c.down_name = "w2";
}

void check_router(int64_t experts_per_token, int64_t num_experts, const std::string& key) {
  if (experts_per_token > num_experts) {
    throw FormatError(
        "config.json: found num_experts_per_tok = {}, expected at most {} = {}; fix the file",
        experts_per_token, key, num_experts);
  }
}

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

namespace {

// Windows of all layers, which `layer_types` may only repeat: the reference reads them nowhere.
std::vector<int64_t> same_windows(const ConfigReader& config, const LlamaConfig& c,
                                  std::optional<int64_t> window) {
  const auto types = read_layer_types(config, c.num_hidden_layers);
  if (types && std::ranges::count(*types, window.has_value()) != std::ssize(*types)) {
    throw ConfigError(
        "config.json: found layer_types beside {}, expected all layers to be alike, as "
        "transformers makes them in this family; remove layer_types",
        window ? fmt::format("sliding_window = {}", *window) : "no sliding_window");
  }
  if (!window) return {};
  return std::vector<int64_t>(static_cast<size_t>(c.num_hidden_layers), *window);
}

std::optional<int64_t> read_window(const ConfigReader& config, std::optional<int64_t> fallback) {
  if (!fallback && !config.has("sliding_window")) return {};
  // A key that says null means none; only a missing one means the default.
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) return {};
  return config.positive_integer("sliding_window", fallback.value_or(1));
}

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

}  // namespace

std::optional<double> balancing_coefficient(const Json& json) {
  const ConfigReader config(json);
  const std::string type = config.text("model_type", "");
  const auto mixtures = {"ernie4_5_moe",     "gpt_oss",    "granitemoe", "granitemoehybrid",
                         "granitemoeshared", "minimax_m2", "mixtral",    "olmoe",
                         "qwen2_moe",        "qwen3_moe",  "qwen3_next", "qwen3_5_moe_text"};
  if (std::ranges::find(mixtures, type) == mixtures.end()) return {};
  if (type == "granitemoehybrid" && config.optional_integer("num_local_experts") == 0) return {};
  const double found = config.number("router_aux_loss_coef", type == "olmoe" ? 0.01 : 0.001);
  if (found >= 0) return found;
  throw FormatError(
      "config.json: found router_aux_loss_coef = {}, expected at least 0; fix the file", found);
}

void describe_balancing(double coefficient, Json& config) {
  config["output_router_logits"] = coefficient != 0;
  config["router_aux_loss_coef"] = coefficient;
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

// Every second of the first layers has a window, unless the file lists them.
static std::vector<int64_t> read_alternating_windows(const ConfigReader& config,
                                                     const LlamaConfig& c) {
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

MixtureConfig parse_mixtral_config(const Json& json) {
  const ConfigReader config(json);
  MixtureConfig c;
  c.llama.layer_class = "MixtralDecoderLayer";
  c.llama.architecture = "MixtralForCausalLM";
  c.llama.ia3_targets = {"k_proj", "v_proj"};
  c.llama.ia3_feedforward = {};
  c.llama.never_quantized = {"block_sparse_moe.gate"};
  c.llama.intermediate_size = 14336;
  c.llama.max_position_embeddings = 131072;
  c.llama.rms_norm_eps = 1e-5;
  parse_common(config, c.llama);
  c.llama.num_key_value_heads = key_value_heads(config, c.llama, 8);
  parse_head_dim(config, c.llama);
  c.llama.windows = same_windows(config, c.llama, read_window(config, std::nullopt));
  name_as_mixtral(c);
  c.num_experts = read_num_experts(config, "num_local_experts", 8);
  c.intermediate_size = c.llama.intermediate_size;
  c.router = {.experts_per_token = config.positive_integer("num_experts_per_tok", 2),
              .normalizes = true,
              .rounds = false};
  c.router_comes_first = true;
  c.has_experts.assign(static_cast<size_t>(c.llama.num_hidden_layers), true);
  check_router(c.router.experts_per_token, c.num_experts, "num_local_experts");
  refuse_router_noise(config);
  parse_positions(config, c.llama, /*splits_hidden_size=*/false, /*default_theta=*/1000000.0);
  return c;
}

}  // namespace strata::models
