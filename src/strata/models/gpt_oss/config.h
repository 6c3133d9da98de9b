// The settings of gpt-oss, read from config.json and checked: Llama's blocks with attention sinks,
// and in the place of the MLP a mixture whose experts are parameters of all of them. Owns: the keys
// beside those of Llama's families. Never: weights.
// Source: transformers configuration_gpt_oss.py.
#pragma once

#include <cstdint>

#include "strata/base/json.h"
#include "strata/models/llama/config.h"
#include "strata/nn/experts/router.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::models {

struct GptOssConfig {
  LlamaConfig llama;
  int64_t num_experts = 0;
  nn::RouterOptions router{};
  ops::ClampedGate gate{};
};

// Errors: as parse_llama_config().
GptOssConfig parse_gpt_oss_config(const Json& config);

}  // namespace strata::models
