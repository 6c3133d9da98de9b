// xIELU, an activation with two numbers that train (Huang and Schlag 2024): for x > 0 alpha_p x^2 +
// beta x, else alpha_n (expm1(min(x, eps)) - x) + beta x. Owns: the check of the arguments and the
// choice of the device. Never: how alpha_p and alpha_n come from parameters (nn/xielu.h).
//
// fp32 or bf16; `numbers` fp32 [4]: alpha_p, alpha_n, beta, eps, beside x. Wrong shapes or types:
// InternalError. Source: transformers XIELUActivation.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

// `x`: contiguous [T, I]; returns as much.
at::Tensor xielu(const at::Tensor& x, const at::Tensor& numbers);

// Turns `x` into its gradient and returns those of alpha_p and alpha_n, fp32 [2]. `dy`: as x.
at::Tensor xielu_backward_(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& numbers);

}  // namespace strata::ops
