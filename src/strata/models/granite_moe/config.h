// The settings of Granite's mixtures (granitemoe, granitemoeshared), read from config.json and
// checked: Granite's layer with experts that are parameters of all of them, and with an MLP of all
// tokens or without. Owns: the keys beside those of Granite. Never: weights.
// Source: transformers configuration_{granitemoe,granitemoeshared}.py.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/base/json.h"
#include "strata/models/llama/config.h"
#include "strata/nn/experts/router.h"

namespace strata::models {

struct GraniteMoeConfig {
  LlamaConfig llama;
  int64_t num_experts = 0;
  nn::RouterOptions router{};
  std::optional<int64_t> shared_intermediate_size = {};  // none: there is no such MLP
};

// Errors: as parse_llama_config().
GraniteMoeConfig parse_granitemoe_config(const Json& config);
GraniteMoeConfig parse_granitemoeshared_config(const Json& config);

}  // namespace strata::models
