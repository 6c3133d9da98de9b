// Products of a few rows of bytes by a matrix of bytes, on raw memory; arguments are checked
// before. Owns: the declaration. Never: tensors, scales.
#pragma once

#include <cstdint>

namespace strata::ops::quant::cpu {

// y [rows, columns] = a [rows, inner] b^T for b [columns, inner], to the bit. Requires: rows is at
// most kMostFewRows (kernels.h), inner below 2^17.
struct ByteRows {
  const int8_t *a, *b;
  int32_t* y;
  int64_t rows, columns, inner;
};
void multiply_byte_rows(const ByteRows& product);

}  // namespace strata::ops::quant::cpu
