// VeRA's shared random matrices, as PEFT draws them from projection_prng_key. Owns: the draw.
// Never: the products (nn/vera.h).
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "strata/nn/vera.h"

namespace strata::adapters {

// A [rank, in_features] and B [out_features, rank], the largest of the targeted layers: uniform as
// torch.nn.init.kaiming_uniform_ has it, A first, fp32. Source: PEFT tuners/vera/model.py.
nn::VeraProjection draw_projection(uint64_t key, int64_t rank, int64_t in_features,
                                   int64_t out_features);

// Rounds what was drawn to the type of a targeted weight, with which PEFT moves it to its device.
// It calls this for plain weights only: codes have no such type (tuners_utils.py).
void round_projection(nn::VeraProjection& projection, at::ScalarType weight);

}  // namespace strata::adapters
