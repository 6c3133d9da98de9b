// The settings of GLM (glm-4-9b-chat-hf) and GLM-4 (GLM-4-9B-0414, GLM-4-32B-0414), read from
// config.json and checked: Llama's with a part of a head's channels turning, each with its
// neighbour. Owns: their keys and defaults. Never: weights.
// Source: transformers configuration_{glm,glm4}.py.
#pragma once

#include "strata/base/json.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Errors: as parse_llama_config().
LlamaConfig parse_glm_config(const Json& config);
LlamaConfig parse_glm4_config(const Json& config);

}  // namespace strata::models
