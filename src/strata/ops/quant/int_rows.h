// Few rows by whole numbers in groups on the CPU, on raw memory; arguments are checked before.
// Owns: the declaration. Never: tensors.
#pragma once

#include "strata/ops/quant/kernels.h"

namespace strata::ops::quant::cpu {

// As multiply_few_rows(). Where columns have no order it is slower, as it rounds every value and
// not sixteen of a group. Requires: Kind::kInts, and not `back`.
void multiply_few_rows_of_ints(const MatrixCodes& matrix, const FewRows& product);

}  // namespace strata::ops::quant::cpu
