// Products of few rows by codes, as answers take them, whatever the codes are. Owns: the checks.
// Never: a kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {

// y [M, rows] = x [M, columns] W^T + beta * y, beta 0 or 1, with sums in fp32 of values that were
// rounded to `compute`, without a decoded matrix in memory. False, and y is as it was, where
// matmul_into() is the way: of more than 16 rows, in fp16, and on a GPU, which has its own products
// of few rows. Of MXFP4 W [rows, columns] is what the codes say, the transpose of the weight.
bool multiply_few_rows_into(at::Tensor y, const at::Tensor& x, const QuantizedMatrix& w, float beta,
                            at::ScalarType compute);

}  // namespace strata::ops::quant
