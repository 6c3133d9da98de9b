// The product of LLM.int8() (Dettmers et al. 2022): activations are quantised too, except for the
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

// a b^T to the bit, int32 [T, N], for int8 a [T, K] and b [N, K] with K below 2^17.
at::Tensor code_product(const at::Tensor& a, const at::Tensor& b);
// The same on the CPU by products of `type`, fp32 or bf16.
at::Tensor code_product_by(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);
// What code_product() takes on the CPU that is no tensor.
int64_t code_product_scratch_bytes(int64_t rows, int64_t columns, int64_t inner);

}  // namespace strata::ops::quant
