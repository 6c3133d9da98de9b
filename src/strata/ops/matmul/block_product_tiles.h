// The loops of a block product over its tiles, whatever a lane holds. A file of one instruction set
// includes it after its target pragma. Owns: the order. Never: an instruction.
//
// `Arithmetic` has `Lanes` (one register of sums), `Column` (one register of b), `kWidth` lanes,
// load(const float*, Lanes&), store(const Lanes&, float*), read(const float*, Column&) and
// add(Lanes& sum, float factor, const Column&).
#pragma once

#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

// c rows [i, i + kRows) and columns [j, j + kVectors vectors).
template <typename Arithmetic, int kRows, int kVectors>
STRATA_INLINE void tile(const BlockProduct& p, int64_t i, int64_t j) {
  constexpr int64_t kWidth = Arithmetic::kWidth;
  typename Arithmetic::Lanes sum[kRows][kVectors] = {};
  float* c = p.c + i * p.c_stride + j;
  if (p.add) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        Arithmetic::load(c + r * p.c_stride + v * kWidth, sum[r][v]);
      }
    }
  }
  const float* a = p.a + i * p.a_row_stride;
  const float* b = p.b + j;
  const int64_t row_stride = p.a_row_stride;
  for (int64_t k = 0; k < p.inner; ++k) {
    typename Arithmetic::Column column[kVectors];
    for (int v = 0; v < kVectors; ++v) Arithmetic::read(b + v * kWidth, column[v]);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * row_stride];
      for (int v = 0; v < kVectors; ++v) Arithmetic::add(sum[r][v], factor, column[v]);
    }
    a += p.a_inner_stride;
    b += p.b_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Arithmetic::store(sum[r][v], c + r * p.c_stride + v * kWidth);
    }
  }
}

// All rows of the columns [j, j + kVectors vectors): whole tiles, then what is left.
template <typename Arithmetic, int kRows, int kVectors>
STRATA_INLINE void tile_column(const BlockProduct& p, int64_t j) {
  int64_t i = 0;
  for (; i + kRows <= p.rows; i += kRows) tile<Arithmetic, kRows, kVectors>(p, i, j);
  for (; i + 4 <= p.rows; i += 4) tile<Arithmetic, 4, kVectors>(p, i, j);
  for (; i < p.rows; ++i) tile<Arithmetic, 1, kVectors>(p, i, j);
}

// The columns from j on in tiles of at most kSums registers, kVectors of them side by side while
// there are so many columns: the wider a tile, the fewer factors of a it reads for a sum.
template <typename Arithmetic, int kSums, int kVectors>
STRATA_INLINE void all_tiles(const BlockProduct& p, int64_t j = 0) {
  constexpr int64_t kColumns = kVectors * Arithmetic::kWidth;
  constexpr int kRows = kSums / (kVectors > 1 ? kVectors : 2);
  for (; j + kColumns <= p.columns; j += kColumns) tile_column<Arithmetic, kRows, kVectors>(p, j);
  if constexpr (kVectors > 1) all_tiles<Arithmetic, kSums, kVectors - 1>(p, j);
}

}  // namespace
}  // namespace strata::ops::cpu
