// Dropout of activations as an autograd function. Owns: drawing the mask again in backward. Never:
// the kernel (ops/dropout.h); the dropout of adapters (nn/low_rank.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

// x [T, channels] with a share `p` of its elements zeroed and the others scaled up, while training.
// T are the tokens of context.batch; `place_id` differs between all places of the model (I6).
at::Tensor dropout(const at::Tensor& x, double p, uint64_t place_id, const ForwardContext& context);

}  // namespace strata::nn
