// A residual sum whose second term has a factor (Granite's residual_multiplier). Owns: its autograd
// function. Never: which layers have one.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::nn {

// residual + scale * x, both [T, hidden]. Where not `wants_output`, x is not read and the result is
// of the right shape alone (nn::Linear::forward_last).
at::Tensor add_scaled(const at::Tensor& residual, const at::Tensor& x, double scale,
                      bool wants_output);

}  // namespace strata::nn
