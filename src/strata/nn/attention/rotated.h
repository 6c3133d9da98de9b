// Rotary positions as an autograd function of their own, for keys that several layers read. Owns:
// the rotation and its backward, the tables of a batch. Never: attention, which rotates what it
// alone reads (attention.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/rope.h"
#include "strata/nn/batch.h"

namespace strata::nn {

// The tables of the batch's documents; of what follows a cache, which is told what it must know.
RopeTables rope_tables(Rope& rope, const ForwardContext& context);

// x [T, num_heads * D] turned in place: it must be a fresh output that nothing else reads.
at::Tensor rotated(const at::Tensor& x, int64_t num_heads, const RopeTables& tables);

}  // namespace strata::nn
