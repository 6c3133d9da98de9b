// Plain loops over rows and scores of a chunk (delta_rows.h).
#include "strata/ops/linear_attention/delta_rows.h"

#include <cmath>

#include "strata/ops/linear_attention/chunk_rows.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

STRATA_VECTORIZED void decay_scores(const DeltaScores& s) {
  for (int64_t i = 0; i < s.tokens; ++i) {
    const float kept = s.kept[i], rate = s.beta[i];
    const float* before = s.between + (i > 0 ? i - 1 : 0) * s.stride;
    const float* keys = s.keys + i * s.stride;
    const float* queries = s.queries + i * s.stride;
    float* between = s.between + i * s.stride;
    float* mix = s.mix + i * s.stride;
    float* scores = s.scores + i * s.stride;
    for (int64_t j = 0; j < s.stride; ++j) {
      const float left = left_after(before[j] * kept, j, i);
      between[j] = left;
      mix[j] = j < i ? -rate * left * keys[j] : 0.0f;
      scores[j] = j <= i ? left * queries[j] : 0.0f;
    }
  }
}

STRATA_VECTORIZED void decay_scores_backward(const DeltaScores& s, const DeltaScoreGradients& g) {
  // Of each column the sum over the rows so far, from the last one on.
  float later[kMostChunkTokens] = {};
  for (int64_t i = s.tokens - 1; i >= 0; --i) {
    const int64_t row = i * s.stride;
    const float rate = s.beta[i];
    float of_rate = 0, sum = 0;
#pragma omp simd reduction(+ : of_rate, sum)
    for (int64_t j = 0; j < i; ++j) {
      const float left = s.between[row + j];
      const float key = s.keys[row + j], query = s.queries[row + j];
      const float dmix = -g.dmix[row + j] * left;
      const float dkey = dmix * rate, dquery = g.dscores[row + j] * left;
      later[j] += dkey * key + dquery * query;
      sum += later[j];
      of_rate += dmix * key;
      g.dkeys[row + j] += dkey;
      g.dqueries[row + j] += dquery;
    }
    g.dqueries[row + i] += g.dscores[row + i];
    g.dbeta[i] += of_rate;
    g.decays[i] = sum;
  }
}

float unit_row(const float* x, int64_t n, int64_t width, float scale, float* y) {
  const float inverse = 1.0f / std::sqrt(dot(x, x, n) + 1e-6f);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (inverse * scale);
  for (int64_t i = n; i < width; ++i) y[i] = 0.0f;
  return inverse;
}

STRATA_VECTORIZED void unit_row_backward(const float* dy, const float* y, int64_t n, float scale,
                                         float inverse, float* dx) {
  float along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t i = 0; i < n; ++i) along += dy[i] * y[i];
  // y is scaled, so that its unit vector is y / scale.
  along /= scale;
  for (int64_t i = 0; i < n; ++i) dx[i] = inverse * (scale * dy[i] - along * y[i]);
}

STRATA_VECTORIZED void solve_rows(const SmallSolve& s, float* x) {
  for (int64_t i = 1; i < s.rows; ++i) {
    float* row = x + i * s.x_stride;
    for (int64_t j = 0; j < i; ++j) {
      const float factor = s.mix[i * s.stride + j];
      const float* other = x + j * s.x_stride;
      for (int64_t c = 0; c < s.columns; ++c) row[c] += factor * other[c];
    }
  }
}

STRATA_VECTORIZED void solve_rows_transposed(const SmallSolve& s, float* x) {
  for (int64_t i = s.rows - 2; i >= 0; --i) {
    float* row = x + i * s.x_stride;
    for (int64_t j = i + 1; j < s.rows; ++j) {
      const float factor = s.mix[j * s.stride + i];
      const float* other = x + j * s.x_stride;
      for (int64_t c = 0; c < s.columns; ++c) row[c] += factor * other[c];
    }
  }
}

}  // namespace strata::ops::cpu
