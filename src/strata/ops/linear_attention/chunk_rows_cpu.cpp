// Plain loops over rows of a chunk (chunk_rows.h).
#include "strata/ops/linear_attention/chunk_rows.h"

#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

STRATA_VECTORIZED float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

STRATA_VECTORIZED void scaled_rows_to(const float* from, const float* factor, int64_t rows,
                                      int64_t width, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; ++c) to[i * width + c] = factor[i] * from[i * width + c];
  }
}

STRATA_VECTORIZED void add_scaled_rows(const ScaledSum& s, int64_t rows, int64_t width, float* to,
                                       float* dots) {
  for (int64_t i = 0; i < rows; ++i) {
    const float factor = s.factor[i];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = i * width; c < (i + 1) * width; ++c) {
      to[c] += s.from[c] * factor;
      sum += s.from[c] * s.with[c];
    }
    dots[i] += s.sign * factor * sum;
  }
}

STRATA_VECTORIZED void exp_row(const float* x, float factor, int64_t n, float* y, float from) {
  for (int64_t i = 0; i < n; ++i) y[i] = exp_vectorizable(factor * (x[i] - from));
}

STRATA_VECTORIZED void add_multiple(const float* x, float factor, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

STRATA_VECTORIZED void scale_all(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

STRATA_VECTORIZED void running_products(const RunningProducts& s) {
  for (int64_t i = 0; i < s.tokens; ++i) {
    const float kept = s.kept[i];
    const float* before = s.between + (i > 0 ? i - 1 : 0) * s.stride;
    const float* products = s.products + i * s.stride;
    float* between = s.between + i * s.stride;
    float* scores = s.scores + i * s.stride;
    for (int64_t j = 0; j < s.stride; ++j) {
      const float left = left_after(before[j] * kept, j, i);
      between[j] = left;
      scores[j] = j <= i ? left * products[j] : 0.0f;
    }
  }
}

STRATA_VECTORIZED void running_products_backward(const RunningProducts& s, const float* dscores,
                                                 float* dproducts, float* decays) {
  // Of each column the sum over the rows so far, from the last one on.
  float later[kMostChunkTokens] = {};
  for (int64_t i = s.tokens - 1; i >= 0; --i) {
    const int64_t row = i * s.stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < i; ++j) {
      later[j] += dscores[row + j] * s.scores[row + j];
      sum += later[j];
      dproducts[row + j] += dscores[row + j] * s.between[row + j];
    }
    dproducts[row + i] += dscores[row + i];
    decays[i] = sum;
  }
}

void sum_decays(const DecaySums& s, int64_t tokens, float* decays) {
  float from = s.whole, to = 0;
  for (int64_t i = tokens - 1; i >= 0; --i) decays[i] = s.own[i] + (from += s.front[i]);
  for (int64_t i = 0; i < tokens; ++i) {
    decays[i] += to;
    to += s.end[i];
  }
}

}  // namespace strata::ops::cpu
