// How fast linear attention forgets, token by token: -exp(A) softplus(a + b), as an autograd
// function over two parameters. Owns: the formula and its backward. Source: Gu and Dao 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// a [T, heads], `log_rate` A and `bias` b [heads] -> fp32 [T, heads], logarithms below 0.
at::Tensor decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias);

}  // namespace strata::nn
