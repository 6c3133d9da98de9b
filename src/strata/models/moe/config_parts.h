// What the parsers of mixtures have in common. Owns: declarations. Never: defaults of a family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/models/config_reader.h"

namespace strata::models {

// Under the key, or by the other of the two names that the reference knows for every family.
int64_t read_num_experts(const ConfigReader& config, const std::string& key, int64_t fallback);

// FormatError for more experts of a token than there are. `key`: of their number.
void check_router(int64_t experts_per_token, int64_t num_experts, const std::string& key);

// Which layers of a family of Qwen have experts; others have an MLP.
std::vector<bool> read_mixture_layers(const ConfigReader& config, int64_t num_layers);

}  // namespace strata::models
