// Block products on the CPU: one tile of c in registers while the whole inner dimension runs by, in
// three widths of register. Never: threads.
#include "strata/ops/block_product.h"

#include <algorithm>
#include <cstring>

#include "strata/ops/block_product_tiles.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Vectors of 4, 8 and 16 floats; the compiler splits what the processor does not have.
typedef float Lanes4 __attribute__((vector_size(16)));
typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes16 __attribute__((vector_size(64)));

// Memory need not be aligned to the vector.
template <typename Vector>
struct Floats {
  static constexpr int64_t kWidth = sizeof(Vector) / sizeof(float);
  using Lanes = Vector;
  using Column = Vector;
  static STRATA_INLINE void load(const float* from, Lanes& lanes) {
    std::memcpy(&lanes, from, sizeof lanes);
  }
  static STRATA_INLINE void store(const Lanes& lanes, float* to) {
    std::memcpy(to, &lanes, sizeof lanes);
  }
  static STRATA_INLINE void read(const float* from, Column& column) { load(from, column); }
  static STRATA_INLINE void add(Lanes& sum, float factor, const Column& column) {
    sum += factor * column;
  }
};

// Tiles that fill the registers: 32 of 512 bit, 16 of 256 bit, 16 or 32 of 128 bit.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void product_512(const BlockProduct& p) {
  all_tiles<Floats<Lanes16>, 24, 4>(p);
}
__attribute__((target("arch=x86-64-v3"))) void product_256(const BlockProduct& p) {
  all_tiles<Floats<Lanes8>, 12, 2>(p);
}
#endif
void product_128(const BlockProduct& p) { all_tiles<Floats<Lanes4>, 12, 2>(p); }

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

namespace {

// to rows of 4 = transpose of from rows of 4.
STRATA_INLINE void transpose_4(const float* from, int64_t from_stride, float* to,
                               int64_t to_stride) {
  Lanes4 row[4];
  for (int r = 0; r < 4; ++r) Floats<Lanes4>::load(from + r * from_stride, row[r]);
  const Lanes4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
  const Lanes4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
  const Lanes4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Lanes4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  Floats<Lanes4>::store(__builtin_shufflevector(low01, low23, 0, 1, 4, 5), to);
  Floats<Lanes4>::store(__builtin_shufflevector(low01, low23, 2, 3, 6, 7), to + to_stride);
  Floats<Lanes4>::store(__builtin_shufflevector(high01, high23, 0, 1, 4, 5), to + 2 * to_stride);
  Floats<Lanes4>::store(__builtin_shufflevector(high01, high23, 2, 3, 6, 7), to + 3 * to_stride);
}

}  // namespace

// In squares of 4; a line of `to` is filled before the next one.
void transpose_block(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                     float* to, int64_t to_stride) {
  const int64_t whole_rows = rows & ~INT64_C(3), whole_columns = columns & ~INT64_C(3);
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < whole_rows; i += kLine) {
    const int64_t end = std::min(i + kLine, whole_rows);
    for (int64_t j = 0; j < whole_columns; j += 4) {
      for (int64_t r = i; r < end; r += 4) {
        transpose_4(from + r * from_stride + j, from_stride, to + j * to_stride + r, to_stride);
      }
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i) {
      to[j * to_stride + i] = from[i * from_stride + j];
    }
  }
}

}  // namespace strata::ops::cpu
