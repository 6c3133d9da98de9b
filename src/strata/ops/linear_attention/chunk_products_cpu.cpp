// Products of matrices and of triangles (chunk_products.h).
#include "strata/ops/linear_attention/chunk_products.h"

#include <algorithm>

namespace strata::ops::cpu {
namespace {

// Rows of a triangle that are multiplied together: tiles have 6.
constexpr int64_t kTriangleRows = 12;

}  // namespace

LineBuffer zeros(int64_t n) {
  LineBuffer buffer(n);
  std::fill_n(buffer.get(), n, 0.0f);
  return buffer;
}

void product(int64_t rows, int64_t columns, int64_t inner, Matrix a, Matrix b, Matrix c, bool add) {
  block_product({.rows = rows,
                 .columns = padded_columns(columns),
                 .inner = inner,
                 .a = a.data,
                 .a_row_stride = a.stride,
                 .a_inner_stride = 1,
                 .b = b.data,
                 .b_stride = b.stride,
                 .c = c.data,
                 .c_stride = c.stride,
                 .add = add});
}

void transposed_product(int64_t rows, int64_t columns, int64_t inner, Matrix a, Matrix b, Matrix c,
                        bool add) {
  block_product({.rows = rows,
                 .columns = padded_columns(columns),
                 .inner = inner,
                 .a = a.data,
                 .a_row_stride = 1,
                 .a_inner_stride = a.stride,
                 .b = b.data,
                 .b_stride = b.stride,
                 .c = c.data,
                 .c_stride = c.stride,
                 .add = add});
}

void lower_product(int64_t tokens, int64_t columns, Matrix lower, Matrix b, Matrix c, bool add) {
  for (int64_t row = 0; row < tokens; row += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, tokens - row);
    product(rows, columns, row + rows, {lower.data + row * lower.stride, lower.stride}, b,
            {c.data + row * c.stride, c.stride}, add);
  }
}

void transposed_lower_product(int64_t tokens, int64_t columns, Matrix lower, Matrix b, Matrix c,
                              bool add) {
  for (int64_t row = 0; row < tokens; row += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, tokens - row);
    transposed_product(
        rows, columns, tokens - row, {lower.data + row * lower.stride + row, lower.stride},
        {b.data + row * b.stride, b.stride}, {c.data + row * c.stride, c.stride}, add);
  }
}

void transpose(int64_t rows, int64_t columns, Matrix from, Matrix to) {
  transpose_block(from.data, from.stride, rows, columns, to.data, to.stride);
  for (int64_t c = 0; rows < to.stride && c < columns; ++c) {
    std::fill(to.data + c * to.stride + rows, to.data + (c + 1) * to.stride, 0.0f);
  }
}

}  // namespace strata::ops::cpu
