// What the parsers of mixtures have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/config_reader.h"
#include "strata/models/moe/config.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::models {

// Under the key, or by the other name that the reference knows for it: num_local_experts, of that
// num_experts, unless `other_name` is another.
int64_t read_num_experts(const ConfigReader& config, const std::string& key, int64_t fallback,
                         const std::string& other_name = {});

inline constexpr int64_t kMostExperts = 65536;  // of a layer; each is three layers here

// A positive integer that the reference knows by two names. FormatError for two numbers.
int64_t read_either(const ConfigReader& config, const std::array<const char*, 2>& keys,
                    int64_t fallback);

// FormatError for more experts of a token than there are. `key`: of their number.
void check_router(int64_t experts_per_token, int64_t num_experts, const std::string& key);

// FormatError for a key that says null: the reference then computes with none, and fails.
void require_not_null(const ConfigReader& config, const std::string& key);
void require_not_null(const ConfigReader& config, std::initializer_list<const char*> keys);

// What the published code does with another text the reference does not. ConfigError for one.
void require_text(const ConfigReader& config, const std::string& key, const std::string& expected);

// ConfigError for noise of what routers read.
void refuse_router_noise(const ConfigReader& config);

// The names of module and matrices in files of Mixtral and MiniMax-M2.
void name_as_mixtral(MixtureConfig& c);

// `count` experts of all tokens, which are one MLP.
void add_shared_experts(MixtureConfig& c, int64_t count);

// The layers from the `first` on.
std::vector<bool> layers_from(int64_t first, int64_t num_layers);

// sliding_window: a key that says null means none; only a missing one means `fallback`.
std::optional<int64_t> read_window(const ConfigReader& config, std::optional<int64_t> fallback);
// The windows of all layers, which `layer_types` may only repeat: the reference reads them nowhere.
std::vector<int64_t> same_windows(const ConfigReader& config, const LlamaConfig& c,
                                  std::optional<int64_t> window);

// n_group and topk_group. FormatError unless they divide the experts into groups of `least_size` or
// more, of which the chosen hold as many as a token has.
nn::ExpertGroups read_expert_groups(const ConfigReader& config, int64_t num_experts,
                                    int64_t experts_per_token, const nn::ExpertGroups& defaults,
                                    int64_t least_size,
                                    const std::string& key = "n_routed_experts");
// `key`: of the number of experts, for messages.
nn::SigmoidRouterOptions read_sigmoid_router(const ConfigReader& config, int64_t num_experts,
                                             const nn::SigmoidRouterOptions& defaults,
                                             const std::string& key = "n_routed_experts");

// Layers after the last, in files alone, that predict further tokens. FormatError below 0.
int64_t read_num_prediction_layers(const ConfigReader& config);

// mlp_layer_types: "dense" or "sparse"; by default the first layers have none.
std::vector<bool> read_sparse_layers(const ConfigReader& config, int64_t num_layers,
                                     int64_t num_dense = 1);

// Which layers of a family of Qwen have experts; others have an MLP.
std::vector<bool> read_mixture_layers(const ConfigReader& config, int64_t num_layers);

}  // namespace strata::models
