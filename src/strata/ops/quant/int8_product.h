// The product of LLM.int8() (Dettmers et al. 2022): activations are quantised too, but for the
// columns that hold outliers, which are multiplied as they are. Owns: that decomposition. Never:
// gradients; training decodes the weight, as bitsandbytes does on CPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {

// x W^T for x [T, K], fp32 or bf16, and W [N, K] of 8 bits; [T, N] in the type of x. Elements of x
// whose magnitude is `threshold` or more mark their column as an outlier; 0: none does.
// Source: bitsandbytes 0.50 autograd/_functions.py, MatMul8bitLt.
at::Tensor int8_product(const at::Tensor& x, const QuantizedMatrix& weight, double threshold);

}  // namespace strata::ops::quant
