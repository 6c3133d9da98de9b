// The loops of attention_scores.h, vectorised for three instruction sets. Never: a product.
#include "strata/ops/attention_scores.h"

#include <limits>

#include "strata/ops/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Masks the columns from n on up to a whole vector with -inf and zeroes the rest. Returns the
// number of columns up to there.
STRATA_INLINE int64_t mask_row(float* row, int64_t n, int64_t columns) {
  const int64_t whole = padded_columns(n);
  for (int64_t j = n; j < whole; ++j) row[j] = -std::numeric_limits<float>::infinity();
  for (int64_t j = whole; j < columns; ++j) row[j] = 0;
  return whole;
}

}  // namespace

STRATA_VECTORIZED void softmax_block(const ScoreBlock& block, float* max, float* sum,
                                     float* correction) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    const int64_t n = mask_row(row, block.visible[r], block.columns);
    float row_max = max[r];
#pragma omp simd reduction(max : row_max)
    for (int64_t j = 0; j < n; ++j) row_max = row[j] > row_max ? row[j] : row_max;
    float row_sum = 0;
#pragma omp simd reduction(+ : row_sum)
    for (int64_t j = 0; j < n; ++j) {
      const float e = exp_vectorizable(row[j] - row_max);
      row[j] = e;
      row_sum += e;
    }
    // -inf before the first block: a correction of 0.
    correction[r] = n == 0 ? 1.0f : exp_vectorizable(max[r] - row_max);
    sum[r] = sum[r] * correction[r] + row_sum;
    max[r] = row_max;
  }
}

STRATA_VECTORIZED void scale_rows(float* x, const float* factor, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) x[r * columns + j] *= factor[r];
  }
}

STRATA_VECTORIZED void softmax_backward_block(const ScoreBlock& block, const float* lse,
                                              const float* delta, float* grad) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* __restrict row = block.scores + r * block.stride;
    float* __restrict grad_row = grad + r * block.stride;
    const int64_t n = mask_row(row, block.visible[r], block.columns);
    const float row_lse = lse[r];
    const float row_delta = delta[r];
    for (int64_t j = 0; j < n; ++j) {
      const float p = exp_vectorizable(row[j] - row_lse);
      row[j] = p;
      grad_row[j] = p * (grad_row[j] - row_delta);
    }
    for (int64_t j = n; j < block.columns; ++j) grad_row[j] = 0;
  }
}

STRATA_VECTORIZED float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

STRATA_VECTORIZED void add_row(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

STRATA_VECTORIZED void scaled_copy(const float* from, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

}  // namespace strata::ops::cpu
