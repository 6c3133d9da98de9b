// What the parsers of mixtures have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/models/config_reader.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::models {

// Under the key, or by the other name that the reference knows for it: num_local_experts, of that
// num_experts, unless `other_name` is another.
int64_t read_num_experts(const ConfigReader& config, const std::string& key, int64_t fallback,
                         const std::string& other_name = {});

// FormatError for more experts of a token than there are. `key`: of their number.
void check_router(int64_t experts_per_token, int64_t num_experts, const std::string& key);

// FormatError for a key that says null: the reference then computes with none, and fails.
void require_not_null(const ConfigReader& config, const std::string& key);

// n_group and topk_group. FormatError unless they divide the experts into groups of `least_size` or
// more, of which the chosen hold as many as a token has.
nn::ExpertGroups read_expert_groups(const ConfigReader& config, int64_t num_experts,
                                    int64_t experts_per_token, const nn::ExpertGroups& defaults,
                                    int64_t least_size);
nn::SigmoidRouterOptions read_sigmoid_router(const ConfigReader& config, int64_t num_experts,
                                             const nn::SigmoidRouterOptions& defaults);

// Layers behind the last, in files alone, that predict further tokens. FormatError below 0.
int64_t read_num_prediction_layers(const ConfigReader& config);

// mlp_layer_types: "dense" or "sparse"; by default the first layer alone has none.
std::vector<bool> read_sparse_layers(const ConfigReader& config, int64_t num_layers);

// Which layers of a family of Qwen have experts; others have an MLP.
std::vector<bool> read_mixture_layers(const ConfigReader& config, int64_t num_layers);

}  // namespace strata::models
