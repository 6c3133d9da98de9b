// LayerNorm (Ba et al. 2016) and its gradients. Owns: the check of the arguments and the choice of
// the device; on GPUs the kernels are libtorch's. Never: parameters.
//
// T tokens, H channels; x [T, H] fp32 or bf16, contiguous. Wrong shapes or types: InternalError; a
// device without kernels: ConfigError.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

struct LayerNormResult {
  at::Tensor y;     // [T, H], type of x
  at::Tensor mean;  // fp32 [T]
  at::Tensor rstd;  // fp32 [T], 1 / sqrt(variance + eps)
};

// y = (x - mean) * rstd * weight + bias in fp32, rounded once. `weight`, `bias` [H], fp32 or bf16.
LayerNormResult layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           double eps);

// Where the gradient of weight or bias goes: [H], fp32 or bf16, overwritten (beta 0) or added to
// (beta 1). Undefined: it is not wanted.
struct LayerNormTarget {
  at::Tensor tensor = {};
  float beta = 0;
};

// Returns the gradient of x, [T, H], plus `residual_grad` [T, H] where that is defined: a residual
// branch point in one pass over memory.
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& mean, const at::Tensor& rstd,
                               const LayerNormTarget& dweight, const LayerNormTarget& dbias,
                               const at::Tensor& residual_grad);

}  // namespace strata::ops
