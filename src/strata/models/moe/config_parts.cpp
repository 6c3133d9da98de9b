#include "strata/models/moe/config_parts.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/layer_types.h"

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

void require_not_null(const ConfigReader& config, const std::string& key) {
  if (!config.json().contains(key) || config.has(key)) return;
  throw FormatError("config.json: found {} = None, expected a value; fix the file", key);
}

void require_not_null(const ConfigReader& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) require_not_null(config, std::string(key));
}

void require_text(const ConfigReader& config, const std::string& key, const std::string& expected) {
  const std::string found = config.text(key, expected);
  if (found == expected) return;
  throw ConfigError(
      "config.json: found {} \"{}\", expected \"{}\"; use a checkpoint whose experts are chosen so",
      key, found, expected);
}

void add_shared_experts(MixtureConfig& c, int64_t count) {
  c.shared_module = "shared_experts";
  c.shared_has_gate = false;
  c.shared_intermediate_size = c.intermediate_size * count;
}

std::vector<bool> layers_from(int64_t first, int64_t num_layers) {
  std::vector<bool> has_experts;
  for (int64_t i = 0; i < num_layers; ++i) has_experts.push_back(i >= first);
  return has_experts;
}

std::vector<int64_t> same_windows(const ConfigReader& config, const LlamaConfig& c,
                                  std::optional<int64_t> window) {
  const auto types = read_layer_types(config, c.num_hidden_layers);
  if (types && std::ranges::count(*types, window.has_value()) != std::ssize(*types)) {
    throw ConfigError(
        "config.json: found layer_types with {}, expected all layers to be alike, as transformers "
        "makes them in this family; remove layer_types",
        window ? fmt::format("sliding_window = {}", *window) : "no sliding_window");
  }
  if (!window) return {};
  return std::vector<int64_t>(static_cast<size_t>(c.num_hidden_layers), *window);
}

std::optional<int64_t> read_window(const ConfigReader& config, std::optional<int64_t> fallback) {
  if (!fallback && !config.has("sliding_window")) return {};
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) return {};
  return config.positive_integer("sliding_window", fallback.value_or(1));
}

}  // namespace strata::models
