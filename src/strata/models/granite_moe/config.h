// The settings of Granite's mixtures (granitemoe, granitemoeshared, granitemoe_swa), read from
// config.json and checked: Granite's layer with experts that are parameters of all of them, and
// with an MLP of all tokens or without. Owns: the keys beside those of Granite. Never: weights.
// Source: transformers configuration_{granitemoe,granitemoeshared,granitemoe_swa}.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config.h"
#include "strata/nn/experts/router.h"

namespace strata::models {

struct GraniteExperts {
  int64_t count;
  int64_t intermediate_size;  // of one
  nn::RouterOptions router;
};

struct GraniteMoeConfig {
  LlamaConfig llama;
  GraniteExperts experts;
  std::optional<int64_t> shared_intermediate_size = {};  // none: there is no such MLP
};

// The keys of experts, in Granite 4.0, too. Errors: as parse_llama_config().
GraniteExperts parse_granite_experts(const ConfigReader& config, int64_t intermediate_size);

// Errors: as parse_llama_config().
GraniteMoeConfig parse_granitemoe_config(const Json& config);
GraniteMoeConfig parse_granitemoeshared_config(const Json& config);
GraniteMoeConfig parse_granitemoe_swa_config(const Json& config);

}  // namespace strata::models
