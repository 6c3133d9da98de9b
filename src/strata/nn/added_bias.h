// A bias that is a weight of its own, not of a linear layer, as one autograd function. Owns: the
// sum and the bias' gradient. Never: biases of linear layers (nn/linear.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// x [T, channels] + bias [channels]. Memory: keeps nothing.
at::Tensor with_bias(const at::Tensor& x, Parameter& bias);

}  // namespace strata::nn
