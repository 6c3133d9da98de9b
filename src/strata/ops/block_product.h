// Products of small row-major fp32 blocks on one thread, the inner step of the attention kernels.
// Owns: the choice of the fastest product. Never: threads.
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

// A block of a row-major matrix; `transposed`: the factor is the block's transpose.
struct Factor {
  const float* data;
  int64_t stride;
  bool transposed = false;
};

struct ProductShape {
  int64_t rows, columns, inner;
};

// c [rows, columns] = a b (or c += a b with `add`), a [rows, inner], b [inner, columns].
void block_product(const ProductShape& shape, Factor a, Factor b, bool add, float* c,
                   int64_t c_stride);

}  // namespace strata::ops::cpu
