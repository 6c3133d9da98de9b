// neftune_noise_alpha: how strong the noise on a micro-batch's embedded tokens is. Never: the noise
// (nn/embedded_rows.h).
#pragma once

#include <cstdint>
#include <span>

#include "strata/config/run_config.h"

namespace strata::train {

// nn::ForwardContext::embedding_noise: alpha by the root of a row's tokens as the reference has
// them in memory, which are those of the longest row, to which it pads, or of all rows where it
// packs them side by side (packing_strategy bfd). 0 without the setting.
double embedding_noise(const config::RunConfig& config, std::span<const int64_t> row_tokens);

}  // namespace strata::train
