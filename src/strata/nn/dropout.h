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

// residual + dropout(x). Where not `wants_output`, x is not read and the result is of the right
// shape alone (nn::Linear::forward_last).
at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& x, double p, uint64_t place_id,
                       const ForwardContext& context, bool wants_output);

}  // namespace strata::nn
