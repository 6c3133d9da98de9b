// Arithmetic on rows of a chunk that its rules share. Owns: plain loops. Never: products
// (chunk_products.h).
#pragma once

#include <cstdint>

#include "strata/base/vectorize.h"

namespace strata::ops::cpu {

// to [rows, width] = from by factor[row].
void scaled_rows_to(const float* from, const float* factor, int64_t rows, int64_t width, float* to);
// to += from by factor[row]; dots[row] += sign * factor[row] * sum(from * with).
struct ScaledSum {
  const float* from;
  const float* factor;
  const float* with;
  float sign;
};
void add_scaled_rows(const ScaledSum& s, int64_t rows, int64_t width, float* to, float* dots);

float dot(const float* a, const float* b, int64_t n);
// y = exp(factor * (x - from)).
void exp_row(const float* x, float factor, int64_t n, float* y, float from = 0);
void scale_all(float* x, float factor, int64_t n);
void add_multiple(const float* x, float factor, int64_t n, float* to);

constexpr int64_t kMostChunkTokens = 64;

// What is left of token `column` at token `row`, from the running product up to there. The token
// itself is there as a whole, beside which fp32 knows nothing so small; products of denormal
// numbers would take a hundred times as long.
constexpr float kLeastLeft = 1e-20f;
STRATA_INLINE float left_after(float product, int64_t column, int64_t row) {
  const float left = product < kLeastLeft ? 0.0f : product;
  return column < row ? left : column == row ? 1.0f : 0.0f;
}

// What is left of each token at those after it, as running products: factors, and not differences
// of sums, which lose digits. All [tokens, stride].
struct RunningProducts {
  int64_t tokens, stride;
  const float* kept;      // [tokens], of what was there before the token
  const float* products;  // right of the diagonal any numbers
  float* between;         // 1 on the diagonal, 0 right of it
  float* scores;          // products by what is left
};
void running_products(const RunningProducts& s);

// Of the scores' gradient: dproducts += dscores * between; `decays` as DecaySums has them.
void running_products_backward(const RunningProducts& s, const float* dscores, float* dproducts,
                               float* decays);

// Gradients of the logarithms of a chunk's decays, each [tokens]. They are sums of what each decay
// is a factor of; differences of running sums would be what cancels out.
struct DecaySums {
  const float* own;    // of pairs that a token stands between, or is the later one of
  const float* front;  // of what has decayed from the front to the token
  const float* end;    // of what decays from the token to the end
  float whole;         // of what decays from the front to the end
};
void sum_decays(const DecaySums& s, int64_t tokens, float* decays);

}  // namespace strata::ops::cpu
