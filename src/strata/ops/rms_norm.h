// RMSNorm (Zhang and Sennrich 2019) in Llama's order of rounding, Gemma's or OLMo's, and its
// gradients. Owns: the check of the arguments and the choice of the device. Never: parameters.
//
// T tokens, H channels; x fp32 or bf16, contiguous. Wrong shapes or types: InternalError; a device
// without kernels: ConfigError.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

struct RmsNormResult {
  at::Tensor y;     // [T, H], type of x
  at::Tensor rstd;  // fp32 [T], 1 / sqrt(mean(x^2) + eps)
};

// kLlama: y = weight * round(x * rstd): the product in brackets is rounded to the type of x first,
// as transformers' LlamaRMSNorm does. kGemma: y = round(x * rstd * (1 + weight)), as GemmaRMSNorm.
// kOlmo: y = round(x * rstd * weight), as Olmo2RMSNorm.
// `weight` [H], fp32 or bf16.
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                       RmsNormKind kind = RmsNormKind::kLlama);

// Returns the gradient of x, [T, H]. Where `dweight` [H] (fp32 or bf16) is defined, the gradient of
// the weight is written into it (beta 0) or added to it (beta 1).
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& dweight, float beta,
                             RmsNormKind kind = RmsNormKind::kLlama);

// The same, and adds `residual_grad` [T, H] to the result: the gradient of a residual branch point
// in one pass over memory.
at::Tensor rms_norm_backward_add(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& weight, const at::Tensor& rstd,
                                 const at::Tensor& dweight, float beta,
                                 const at::Tensor& residual_grad,
                                 RmsNormKind kind = RmsNormKind::kLlama);

}  // namespace strata::ops
