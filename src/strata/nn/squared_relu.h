// The square of relu between the two products of a plain MLP as one autograd function (Primer, So
// et al. 2021). Owns: saving its input, and nothing else. Never: other activations (activation.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/remakable.h"

namespace strata::nn {

// x [T, intermediate], a fresh output that nothing else reads: backward takes its memory for the
// gradient.
Remakable squared_relu(const at::Tensor& x);

}  // namespace strata::nn
