// Few rows by a matrix of codes: a part of a row of the matrix is decoded into the first cache and
// multiplied there, so that memory delivers codes alone. Never: checks, other types than fp32.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "strata/ops/lanes.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/quant/int_rows.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/mxfp4_rows.h"
#include "strata/ops/quant/rounded_values.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {
namespace {

constexpr int64_t kAtOnce = 1024;  // elements of a row of the matrix

bool is_in_4_bits(const MatrixCodes& matrix) {
  return matrix.kind == Kind::kNf4 || matrix.kind == Kind::kFp4;
}

void decode(const MatrixCodes& matrix, const FewRows& product, int64_t begin, int64_t count,
            float* to) {
  dequantize(matrix, begin, count, to);
  const bool is_rounded = matrix.through == Element::kBFloat16;
  if (product.rounds_to_bf16 && !is_rounded) round_to(Element::kBFloat16, to, count);
}

// Sums over a part of the inner dimension.
struct Dots {
  const float* x;  // rows at `stride` from each other
  int64_t stride, rows;
  const float* w;
  int64_t count;
  float* sums;  // [rows], added to
};

// So many rows of x at a time, each with so many registers of sums, which do not wait for each
// other.
template <typename Lanes, int kRows, int kParts>
STRATA_INLINE void add_dots(const Dots& d, int64_t first) {
  constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float), kStep = kLanes * kParts;
  const int64_t whole = d.count / kStep * kStep;
  Lanes sums[kRows][kParts] = {};
  for (int64_t k = 0; k < whole; k += kStep) {
    for (int p = 0; p < kParts; ++p) {
      Lanes w;
      std::memcpy(&w, d.w + k + p * kLanes, sizeof w);
      for (int m = 0; m < kRows; ++m) {
        Lanes x;
        std::memcpy(&x, d.x + (first + m) * d.stride + k + p * kLanes, sizeof x);
        sums[m][p] += x * w;
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    Lanes lanes = sums[m][0];
    for (int p = 1; p < kParts; ++p) lanes += sums[m][p];
    float total = 0;
    for (int64_t i = 0; i < kLanes; ++i) total += lanes[i];
    const float* x = d.x + (first + m) * d.stride;
    for (int64_t k = whole; k < d.count; ++k) total += x[k] * d.w[k];
    d.sums[first + m] += total;
  }
}

template <typename Lanes>
STRATA_INLINE void add_all_dots(const Dots& d) {
  int64_t m = 0;
  for (; m + 4 <= d.rows; m += 4) add_dots<Lanes, 4, 2>(d, m);
  for (; m < d.rows; ++m) add_dots<Lanes, 1, 4>(d, m);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void add_dots_512(const Dots& d) {
  add_all_dots<Lanes16>(d);
}
__attribute__((target("arch=x86-64-v3"))) void add_dots_256(const Dots& d) {
  add_all_dots<Lanes8>(d);
}
#endif
void add_dots_128(const Dots& d) { add_all_dots<Lanes4>(d); }

using AddDots = void (*)(const Dots&);
AddDots best_add_dots() {
#if defined(__x86_64__) && defined(__GNUC__)
  const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) return add_dots_512;
  if (best == InstructionSet::kAvx2) return add_dots_256;
#endif
  return add_dots_128;
}

// `decode_part`: elements [begin, begin + count) of a row of W, of `inner`, to a buffer.
template <typename DecodePart>
void multiply_transposed(const FewRows& product, int64_t inner, const DecodePart& decode_part) {
  static const AddDots add = best_add_dots();
  const int64_t outer = product.weight_rows;
  constexpr int64_t kElementsOfThread = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsOfThread / std::max<int64_t>(1, inner));
  at::parallel_for(0, outer, grain, [&](int64_t begin, int64_t end) {
    const ops::cpu::LineBuffer w(kAtOnce);
    for (int64_t row = begin; row < end; ++row) {
      float sums[kMostFewRows] = {};
      for (int64_t k = 0; k < inner; k += kAtOnce) {
        const int64_t count = std::min(kAtOnce, inner - k);
        decode_part(row, k, count, w.get());
        add({product.x + k, inner, product.rows, w.get(), count, sums});
      }
      for (int64_t m = 0; m < product.rows; ++m) product.y[m * outer + row] = sums[m];
    }
  });
}

constexpr int64_t kRowsAtOnce = 4;  // of the matrix, so that y is read and written once for them

STRATA_VECTORIZED void add_rows(const float* w, int64_t stride, const float* factors, float* y,
                                int64_t count) {
  const float *w0 = w, *w1 = w + stride, *w2 = w + 2 * stride, *w3 = w + 3 * stride;
  const float f0 = factors[0], f1 = factors[1], f2 = factors[2], f3 = factors[3];
  for (int64_t i = 0; i < count; ++i) {
    y[i] = y[i] + f0 * w0[i] + f1 * w1[i] + f2 * w2[i] + f3 * w3[i];
  }
}

// Columns from `begin` on, which have their sums in a cache.
void multiply_columns(const MatrixCodes& matrix, const FewRows& product, int64_t begin,
                      int64_t count) {
  const ops::cpu::LineBuffer w(kRowsAtOnce * count), sums(product.rows * count);
  std::fill_n(sums.get(), product.rows * count, 0.0f);
  for (int64_t row = 0; row < product.weight_rows; row += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, product.weight_rows - row);
    for (int64_t r = 0; r < rows; ++r) {
      decode(matrix, product, (row + r) * matrix.columns + begin, count, w.get() + r * count);
    }
    std::fill_n(w.get() + rows * count, (kRowsAtOnce - rows) * count, 0.0f);
    for (int64_t m = 0; m < product.rows; ++m) {
      float factors[kRowsAtOnce] = {};
      std::copy_n(product.x + m * product.weight_rows + row, rows, factors);
      add_rows(w.get(), count, factors, sums.get() + m * count, count);
    }
  }
  for (int64_t m = 0; m < product.rows; ++m) {
    std::copy_n(sums.get() + m * count, count, product.y + m * matrix.columns + begin);
  }
}

void multiply_plain(const MatrixCodes& matrix, const FewRows& product) {
  // Every thread has some, and both sums and decoded rows stay in the second cache.
  constexpr int64_t kLine = 16;
  const int64_t shares = (matrix.columns + at::get_num_threads() - 1) / at::get_num_threads();
  const int64_t width = std::min(kAtOnce, (shares + kLine - 1) / kLine * kLine);
  const int64_t parts = width == 0 ? 0 : (matrix.columns + width - 1) / width;
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * width;
      multiply_columns(matrix, product, begin, std::min(width, matrix.columns - begin));
    }
  });
}

}  // namespace

void multiply_few_rows(const MatrixCodes& matrix, const FewRows& product) {
  if (matrix.ints.order != nullptr && !product.back) {
    return multiply_few_rows_of_ints(matrix, product);
  }
  MatrixCodes own = matrix;
  // Of 4 bits the sixteen values of a block are rounded instead of all its elements.
  if (is_in_4_bits(own) && product.rounds_to_bf16) own.through = Element::kBFloat16;
  if (product.back) return multiply_plain(own, product);
  multiply_transposed(product, own.columns,
                      [&](int64_t row, int64_t begin, int64_t count, float* to) {
                        decode(own, product, row * own.columns + begin, count, to);
                      });
}

void multiply_few_rows(const Mxfp4Codes& matrix, const FewRows& product, bool through_half) {
  multiply_transposed(product, matrix.rows,
                      [&](int64_t column, int64_t begin, int64_t count, float* to) {
                        decode_mxfp4_row(matrix, column, begin, count, to);
                        if (!through_half) return;  // each value is one of bf16
                        round_to(Element::kHalf, to, count);
                        if (product.rounds_to_bf16) round_to(Element::kBFloat16, to, count);
                      });
}

}  // namespace strata::ops::quant::cpu
