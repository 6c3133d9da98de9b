// Block products on the CPU: one tile of c in registers while the whole inner dimension runs by, in
// three widths of register. Never: threads.
#include "strata/ops/block_product.h"

#include <algorithm>
#include <cstring>

#include "strata/ops/instruction_set.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Vectors of 4, 8 and 16 floats; the compiler splits what the processor does not have.
typedef float Lanes4 __attribute__((vector_size(16)));
typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes16 __attribute__((vector_size(64)));

// Memory need not be aligned to the vector.
template <typename Lanes>
STRATA_INLINE void load(const float* from, Lanes& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}
template <typename Lanes>
STRATA_INLINE void store(const Lanes& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// c rows [i, i + kRows) and columns [j, j + kVectors vectors).
template <typename Lanes, int kRows, int kVectors>
STRATA_INLINE void tile(const BlockProduct& p, int64_t i, int64_t j) {
  constexpr int64_t kWidth = sizeof(Lanes) / sizeof(float);
  Lanes sum[kRows][kVectors] = {};
  float* c = p.c + i * p.c_stride + j;
  if (p.add) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) load(c + r * p.c_stride + v * kWidth, sum[r][v]);
    }
  }
  const float* a = p.a + i * p.a_row_stride;
  const float* b = p.b + j;
  const int64_t row_stride = p.a_row_stride;
  for (int64_t k = 0; k < p.inner; ++k) {
    Lanes column[kVectors];
    for (int v = 0; v < kVectors; ++v) load(b + v * kWidth, column[v]);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * row_stride];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += factor * column[v];
    }
    a += p.a_inner_stride;
    b += p.b_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(sum[r][v], c + r * p.c_stride + v * kWidth);
  }
}

// All rows of the columns [j, j + kVectors vectors): whole tiles, then what is left.
template <typename Lanes, int kRows, int kVectors>
STRATA_INLINE void tile_column(const BlockProduct& p, int64_t j) {
  int64_t i = 0;
  for (; i + kRows <= p.rows; i += kRows) tile<Lanes, kRows, kVectors>(p, i, j);
  for (; i + 4 <= p.rows; i += 4) tile<Lanes, 4, kVectors>(p, i, j);
  for (; i < p.rows; ++i) tile<Lanes, 1, kVectors>(p, i, j);
}

template <typename Lanes, int kRows>
STRATA_INLINE void all_tiles(const BlockProduct& p) {
  constexpr int64_t kWidth = sizeof(Lanes) / sizeof(float);
  int64_t j = 0;
  for (; j + 2 * kWidth <= p.columns; j += 2 * kWidth) tile_column<Lanes, kRows, 2>(p, j);
  for (; j < p.columns; j += kWidth) tile_column<Lanes, kRows, 1>(p, j);
}

// Tiles that fill the registers: 32 of 512 bit, 16 of 256 bit, 16 or 32 of 128 bit.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void product_512(const BlockProduct& p) {
  all_tiles<Lanes16, 12>(p);
}
__attribute__((target("arch=x86-64-v3"))) void product_256(const BlockProduct& p) {
  all_tiles<Lanes8, 6>(p);
}
#endif
void product_128(const BlockProduct& p) { all_tiles<Lanes4, 6>(p); }

using ProductFunction = void (*)(const BlockProduct&);

ProductFunction best_product() {
#if defined(__x86_64__) && defined(__GNUC__)
  const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) return product_512;
  if (best == InstructionSet::kAvx2) return product_256;
#endif
  return product_128;
}

}  // namespace

void block_product(const BlockProduct& product) {
  static const ProductFunction function = best_product();
  if (product.rows > 0) function(product);
}

STRATA_VECTORIZED void transpose_block(const float* from, int64_t from_stride, int64_t rows,
                                       int64_t columns, float* to, int64_t to_stride) {
  constexpr int64_t kTile = 16;
  for (int64_t i = 0; i < rows; i += kTile) {
    const int64_t end = std::min(i + kTile, rows);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t r = i; r < end; ++r) to[j * to_stride + r] = from[r * from_stride + j];
    }
  }
}

}  // namespace strata::ops::cpu
