// Positions that are rows of a table, as many as a model was made with. Owns: the check that a
// micro-batch has no more. Never: the table.
#pragma once

#include <cstdint>
#include <string_view>

#include "strata/nn/batch.h"

namespace strata::models {

// ConfigError where a document of the micro-batch, with what the cache holds before it, has more
// tokens than `most`, the value of `key` in config.json.
void check_learned_positions(const nn::ForwardContext& context, int64_t most, std::string_view key);

}  // namespace strata::models
