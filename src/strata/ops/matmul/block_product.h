// Products of blocks on one thread, held in registers tile by tile: the inner step of matrix
// products and of attention.
// Owns: the register tiles. Never: threads, packing; the caller lays its blocks out.
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

// Columns of `b` and `c` come in whole multiples of this many elements; what stands in the padding
// is computed like the rest.
constexpr int64_t kColumnMultiple = 16;

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr int64_t padded_columns(int64_t n) { return round_up(n, kColumnMultiple); }

// c [rows, columns] = a b, or c += a b with `add`.
struct BlockProduct {
  int64_t rows, columns, inner;
  const float* a;  // element (i, k) at a[i * a_row_stride + k * a_inner_stride]
  int64_t a_row_stride, a_inner_stride;
  const float* b;  // element (k, j) at b[k * b_stride + j]
  int64_t b_stride;
  float* c;  // element (i, j) at c[i * c_stride + j]
  int64_t c_stride;
  bool add = false;
};
void block_product(const BlockProduct& product);

// The same where every element of a and b is a pair of bf16 that follow each other along the inner
// dimension, `inner` of them. Requires has_pair_product().
void pair_product(const BlockProduct& product);
bool has_pair_product();

// The same in tiles of the processor's matrix unit (Intel's AMX). Requires has_tile_product(), a
// TileScope of the thread, 16 or 32 rows and columns and an `inner` of whole kLanesOfTile; element
// (i, k) of a lies at a[k / kLanesOfTile * a_inner_stride + i * a_row_stride + k % kLanesOfTile]. A
// tile's product takes as long as 16 of pair_product's instructions do, of which it replaces 256.
constexpr int64_t kLanesOfTile = 16, kRowsOfTile = 16;
void tile_product(const BlockProduct& product);
// Asks the kernel for the unit's registers, and multiplies once to see that they work.
bool has_tile_product();
bool tile_product_is_right();

// While it lives its thread's unit knows the size of the tiles, which takes as long to say as a
// tenth of a product. At its end the registers are empty again: else the kernel would save eight
// KiB at every change of threads.
class TileScope {
 public:
  explicit TileScope(bool uses_tiles);
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  bool uses_tiles_;
};

// to [columns, rows] (stride `to_stride`) = transpose of from [rows, columns].
void transpose_block(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                     float* to, int64_t to_stride);

}  // namespace strata::ops::cpu
