// Decoding of matrices in MXFP4, as products take them. Owns: the checks. Never: which weights they
// are, files.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {

// The transpose of `matrix`, of kMxfp4Format, into `out` [matrix.columns, matrix.rows], contiguous,
// fp32 or bf16, on a GPU also fp16. `through_half`: values are rounded to fp16 on the way; without
// it each is one of bf16, but what exceeds the range of `out`.
void decode_mxfp4_into(const at::Tensor& out, const QuantizedMatrix& matrix, bool through_half);

}  // namespace strata::ops::quant
