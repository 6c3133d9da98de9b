// The loops of attention_scores.h, vectorised for three instruction sets. Never: a product.
#include "strata/ops/attention/attention_scores.h"

#include <cmath>
#include <limits>

#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kLanes = kColumnMultiple;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// n up to whole vectors; the compiler sees that nothing is left over.
STRATA_INLINE int64_t whole_vectors(int64_t n) { return (n + kLanes - 1) & ~(kLanes - 1); }

// Masks the columns from n on up to a whole vector. Returns how many columns there are up to there.
STRATA_INLINE int64_t mask_row(float* row, int64_t n) {
  const int64_t whole = whole_vectors(n);
  if (whole == n) return whole;
  float* last = row + whole - kLanes;
  const auto seen = static_cast<int32_t>(n - (whole - kLanes));
#pragma omp simd
  for (int32_t j = 0; j < kLanes; ++j) last[j] = j < seen ? last[j] : kMasked;
  return whole;
}

// Zeroes the vector after the first n columns. Products read no farther into what is masked.
STRATA_INLINE void zero_next(float* row, int64_t n, int64_t columns) {
  if (n == columns) return;
#pragma omp simd
  for (int64_t j = 0; j < kLanes; ++j) row[n + j] = 0;
}

STRATA_INLINE float max_of_row(const float* row, int64_t n, float max) {
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < n; ++j) max = row[j] > max ? row[j] : max;
  return max;
}

// Turns the row into exp(score - max) and returns the sum.
STRATA_INLINE float exponentials_of_row(float* row, int64_t n, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) {
    const float e = exp_below_one(row[j] - max);
    row[j] = e;
    sum += e;
  }
  return sum;
}

// Turns the row into probabilities and returns the sum of their products with `grad`. lse, rounded,
// makes all of a row too large or too small by one factor, which the products have beside the sum
// already: it is taken out. Where the sum is farther from one than that, a sink has the rest.
STRATA_INLINE float probabilities_of_row(float* __restrict row, const float* __restrict grad,
                                         int64_t n, float lse) {
  float sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
  for (int64_t j = 0; j < n; ++j) {
    const float p = exp_below_one(row[j] - lse);
    row[j] = p;
    sum += p;
    products += p * grad[j];
  }
  const float rounding = 4 * std::numeric_limits<float>::epsilon() * (1 + std::abs(lse));
  return std::abs(sum - 1) <= rounding ? products / sum : products;
}

}  // namespace

// All maxima come before the first exponential: exponentials that wait for the end of a reduction
// leave the processor idle, row by row.
STRATA_VECTORIZED void softmax_block(const ScoreBlock& block, float* max, float* sum,
                                     float* correction) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    const int64_t n = mask_row(row, block.visible[r]);
    correction[r] = max_of_row(row, n, max[r]);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    const float new_max = correction[r];
    // max is -inf before the first block: a correction of 0; both while nothing is visible, or all
    // of it lies before the row's window.
    correction[r] = exp_below_one(new_max == kMasked ? 0.0f : max[r] - new_max);
    max[r] = new_max;
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    const int64_t n = whole_vectors(block.visible[r]);
    const float shift = max[r] == kMasked ? 0.0f : max[r];
    sum[r] = sum[r] * correction[r] + exponentials_of_row(row, n, shift);
    zero_next(row, n, block.columns);
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
    const int64_t n = mask_row(row, block.visible[r]);
    const float row_lse = lse[r];
    if (delta == nullptr) {
      const float row_delta = probabilities_of_row(row, grad_row, n, row_lse);
      for (int64_t j = 0; j < n; ++j) grad_row[j] = row[j] * (grad_row[j] - row_delta);
    } else {
      const float row_delta = delta[r];
      for (int64_t j = 0; j < n; ++j) {
        const float p = exp_below_one(row[j] - row_lse);
        row[j] = p;
        grad_row[j] = p * (grad_row[j] - row_delta);
      }
    }
    zero_next(row, n, block.columns);
    zero_next(grad_row, n, block.columns);
  }
}

STRATA_VECTORIZED void cap_scores(const ScoreBlock& block, float cap, float* slopes) {
  const float inverse = 1.0f / cap;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* __restrict row = block.scores + r * block.stride;
    const int64_t n = whole_vectors(block.visible[r]);
    if (slopes == nullptr) {
      for (int64_t j = 0; j < n; ++j) row[j] = cap * tanh_vectorizable(row[j] * inverse);
      continue;
    }
    float* __restrict slope_row = slopes + r * block.stride;
    for (int64_t j = 0; j < n; ++j) {
      const float t = tanh_vectorizable(row[j] * inverse);
      row[j] = cap * t;
      slope_row[j] = 1.0f - t * t;
    }
  }
}

STRATA_VECTORIZED void multiply_scores(const ScoreBlock& block, const float* slopes, float* grad) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* __restrict slope_row = slopes + r * block.stride;
    float* __restrict grad_row = grad + r * block.stride;
    const int64_t n = whole_vectors(block.visible[r]);
    for (int64_t j = 0; j < n; ++j) grad_row[j] *= slope_row[j];
  }
}

STRATA_VECTORIZED void add_row(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

STRATA_VECTORIZED void scaled_copy(const float* from, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

STRATA_VECTORIZED void scaled_rows(const HeadRows& rows, float factor, float* to, int64_t width) {
  for (int64_t i = 0; i < rows.tokens; ++i) {
    for (int64_t h = 0; h < rows.heads; ++h, to += width) {
      const float* from = rows.data + i * rows.token_stride + h * rows.head_stride;
#pragma omp simd
      for (int64_t c = 0; c < rows.channels; ++c) to[c] = from[c] * factor;
      for (int64_t c = rows.channels; c < width; ++c) to[c] = 0;
    }
  }
}

STRATA_VECTORIZED void dot_rows(const HeadRows& rows, const float* x, int64_t width, float* dots) {
  for (int64_t i = 0; i < rows.tokens; ++i) {
    for (int64_t h = 0; h < rows.heads; ++h, x += width) {
      const float* row = rows.data + i * rows.token_stride + h * rows.head_stride;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < rows.channels; ++c) sum += row[c] * x[c];
      *dots++ = sum;
    }
  }
}

}  // namespace strata::ops::cpu
