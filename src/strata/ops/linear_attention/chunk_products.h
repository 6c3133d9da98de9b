// What rules over chunks multiply on one thread: matrices of at most a chunk's rows, in the
// register tiles of matmul/block_product.h. Owns: how those lie. Never: threads, arithmetic on
// elements.
#pragma once

#include <cstdint>
#include <cstring>

#include "strata/ops/element.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

inline void write_row(Element type, const float* row, int64_t n, void* to) {
  if (type == Element::kFloat) {
    std::memcpy(to, row, static_cast<size_t>(n) * sizeof(float));
  } else {
    narrow(row, static_cast<uint16_t*>(to), n);
  }
}

// c (+)= a b of row-major matrices; a transposed: its rows are the inner dimension.
struct Matrix {
  float* data;
  int64_t stride;
};
void product(int64_t rows, int64_t columns, int64_t inner, Matrix a, Matrix b, Matrix c, bool add);
void transposed_product(int64_t rows, int64_t columns, int64_t inner, Matrix a, Matrix b, Matrix c,
                        bool add);
// The same of a lower triangle [tokens, tokens], of which only that is read.
void lower_product(int64_t tokens, int64_t columns, Matrix lower, Matrix b, Matrix c, bool add);
void transposed_lower_product(int64_t tokens, int64_t columns, Matrix lower, Matrix b, Matrix c,
                              bool add);
// to [columns of from, stride] = the transpose of from [rows, columns], zeros right of it.
void transpose(int64_t rows, int64_t columns, Matrix from, Matrix to);

LineBuffer zeros(int64_t n);

}  // namespace strata::ops::cpu
