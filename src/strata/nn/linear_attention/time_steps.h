// The steps of a state space, token by token: softplus(x + bias) within limits, as an autograd
// function over a parameter. Owns: the formula and its backward. Source: Gu and Dao 2023.
#pragma once

#include <limits>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

struct StepLimits {
  double least = 0, most = std::numeric_limits<double>::infinity();
};

// x [T, heads], `bias` [heads] -> fp32 [T, heads].
at::Tensor time_steps(const at::Tensor& x, Parameter& bias, const StepLimits& limits);

}  // namespace strata::nn
