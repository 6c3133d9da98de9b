// A quantised matrix as the kernels for a GPU take it. Owns: that view. Never: a kernel, memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {

// The type that decoded values are rounded to first.
Element plain_element(const QuantizedMatrix& matrix);

// `scales`: fp32, on the matrix's device; those of double quantisation are resolved before. Not of
// whole numbers, which have theirs among their bytes.
cuda::MatrixCodes codes_on_device(const QuantizedMatrix& matrix, const at::Tensor& scales);

}  // namespace strata::ops::quant
