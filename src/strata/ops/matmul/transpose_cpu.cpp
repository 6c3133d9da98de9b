// Transposes of fp32 blocks on the CPU, by squares of 4 of which wide registers hold several.
#include <cstring>

#include "strata/ops/instruction_set.h"
#include "strata/ops/lanes.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

struct Block {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;

  STRATA_INLINE Block at(int64_t row, int64_t column) const {
    return {from + row * from_stride + column, from_stride, to + column * to_stride + row,
            to_stride};
  }
};

// Part q of register r, of 4 numbers, holds row r + 4 q. The parts are transposed each in itself:
// then part q of register c holds the rows 4 q .. 4 q + 3 of column c, and registers are columns.
STRATA_INLINE void interleave(const Lanes4& a, const Lanes4& b, Lanes4& low, Lanes4& high) {
  low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
STRATA_INLINE void interleave(const Lanes8& a, const Lanes8& b, Lanes8& low, Lanes8& high) {
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  high = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
STRATA_INLINE void interleave(const Lanes16& a, const Lanes16& b, Lanes16& low, Lanes16& high) {
  low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  high = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
STRATA_INLINE void join_halves(const Lanes4& a, const Lanes4& b, Lanes4& low, Lanes4& high) {
  low = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  high = __builtin_shufflevector(a, b, 2, 3, 6, 7);
}
STRATA_INLINE void join_halves(const Lanes8& a, const Lanes8& b, Lanes8& low, Lanes8& high) {
  low = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  high = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}
STRATA_INLINE void join_halves(const Lanes16& a, const Lanes16& b, Lanes16& low, Lanes16& high) {
  low = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  high = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

STRATA_INLINE void read_part(const Block& b, int row, Lanes4& part) {
  std::memcpy(&part, b.from + row * b.from_stride, sizeof part);
}
STRATA_INLINE void read(const Block& b, int row, Lanes4& x) { read_part(b, row, x); }
STRATA_INLINE void read(const Block& b, int row, Lanes8& x) {
  Lanes4 part[2];
  for (int q = 0; q < 2; ++q) read_part(b, row + 4 * q, part[q]);
  x = __builtin_shufflevector(part[0], part[1], 0, 1, 2, 3, 4, 5, 6, 7);
}
STRATA_INLINE void read(const Block& b, int row, Lanes16& x) {
  Lanes8 half[2];
  for (int h = 0; h < 2; ++h) read(b, row + 8 * h, half[h]);
  x = __builtin_shufflevector(half[0], half[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                              15);
}

// Whole squares from row `row` on, as many rows at a time as a register has lanes: a line of `to`
// is filled before the next one. Returns the first row that is left.
template <typename Lanes>
STRATA_INLINE int64_t transpose_squares(const Block& whole, int64_t row, int64_t rows,
                                        int64_t columns) {
  constexpr int64_t kRows = sizeof(Lanes) / sizeof(float);
  for (; row + kRows <= rows; row += kRows) {
    for (int64_t j = 0; j + 4 <= columns; j += 4) {
      const Block b = whole.at(row, j);
      Lanes x[4], low[2], high[2], column[4];
      for (int r = 0; r < 4; ++r) read(b, r, x[r]);
      interleave(x[0], x[1], low[0], high[0]);
      interleave(x[2], x[3], low[1], high[1]);
      join_halves(low[0], low[1], column[0], column[1]);
      join_halves(high[0], high[1], column[2], column[3]);
      for (int c = 0; c < 4; ++c) std::memcpy(b.to + c * b.to_stride, &column[c], sizeof(Lanes));
    }
  }
  return row;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) int64_t squares_512(const Block& b, int64_t row,
                                                              int64_t rows, int64_t columns) {
  return transpose_squares<Lanes16>(b, row, rows, columns);
}
__attribute__((target("arch=x86-64-v3"))) int64_t squares_256(const Block& b, int64_t row,
                                                              int64_t rows, int64_t columns) {
  return transpose_squares<Lanes8>(b, row, rows, columns);
}
#endif

// Returns how many rows are done.
int64_t all_squares(const Block& b, int64_t rows, int64_t columns) {
  int64_t row = 0;
#if defined(__x86_64__) && defined(__GNUC__)
  static const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) row = squares_512(b, row, rows, columns);
  if (best != InstructionSet::kBaseline) row = squares_256(b, row, rows, columns);
#endif
  return transpose_squares<Lanes4>(b, row, rows, columns);
}

}  // namespace

void transpose_block(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                     float* to, int64_t to_stride) {
  const int64_t whole_rows = all_squares({from, from_stride, to, to_stride}, rows, columns);
  const int64_t whole_columns = columns & ~INT64_C(3);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i) {
      std::memcpy(to + j * to_stride + i, from + i * from_stride + j, sizeof(float));
    }
  }
}

}  // namespace strata::ops::cpu
