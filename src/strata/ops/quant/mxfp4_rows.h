// Few rows by a matrix in MXFP4 on the CPU, on raw memory; arguments are checked before. Owns:
// declarations. Never: tensors.
#pragma once

#include <cstdint>

#include "strata/ops/quant/kernels.h"

namespace strata::ops::quant::cpu {

// Elements [first, first + count) of the codes' row `column`, which is a column of the matrix, as
// fp32. Requires: whole blocks.
void decode_mxfp4_row(const Mxfp4Codes& matrix, int64_t column, int64_t first, int64_t count,
                      float* out);

// y [rows, matrix.columns] = x [rows, matrix.rows] by the matrix: `product.weight_rows` is
// matrix.columns, `back` is false. Otherwise as multiply_few_rows(). `through_half`: values are
// rounded to fp16 before.
void multiply_few_rows(const Mxfp4Codes& matrix, const FewRows& product, bool through_half);

}  // namespace strata::ops::quant::cpu
