// The activation between the two products of a plain MLP as one autograd function. Owns: saving its
// input, and nothing else. Never: gated activations (nn/gated_mlp.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/remakable.h"

namespace strata::nn {

// kGeluTanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); kGelu: by the error function;
// kSquaredRelu: the square of relu (Primer, So et al. 2021).
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kSquaredRelu };

// x [T, intermediate], a fresh output that nothing else reads: backward takes its memory for the
// gradient; of relu that of the result, which is kept in its place.
Remakable activate(const at::Tensor& x, Activation activation);

}  // namespace strata::nn
