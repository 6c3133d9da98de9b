// Cross-entropy on the CPU: a row of logits is read once from memory and once from the cache.
// Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

STRATA_VECTORIZED float max_row(const float* x, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

struct ExpSums {
  float sum;       // of e = exp(x - max)
  float weighted;  // of e * (x - max)
};

STRATA_VECTORIZED ExpSums exp_sums(const float* x, float max, int64_t n) {
  float sum = 0;
  float weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
  for (int64_t i = 0; i < n; ++i) {
    float d = x[i] - max;
    d = d < -1e4f ? -1e4f : d;  // 0 * -inf would be NaN
    const float e = exp_vectorizable(d);
    sum += e;
    weighted += e * d;
  }
  return {sum, weighted};
}

// The same, and stores e in place of x.
STRATA_VECTORIZED ExpSums exp_sums_store(float* x, float max, int64_t n) {
  float sum = 0;
  float weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
  for (int64_t i = 0; i < n; ++i) {
    float d = x[i] - max;
    d = d < -1e4f ? -1e4f : d;
    const float e = exp_vectorizable(d);
    x[i] = e;
    sum += e;
    weighted += e * d;
  }
  return {sum, weighted};
}

STRATA_VECTORIZED void scale_row(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// fp32 sums are carried over this many elements at most, double beyond.
constexpr int64_t kPiece = 4096;

CrossEntropyRow process_row(float* x, int64_t target, int64_t n, float scale, bool want_gradient) {
  const float max = max_row(x, n);
  const float target_logit = x[target];
  const bool is_correct = target_logit == max && std::find(x, x + target, max) == x + target;
  double sum = 0;
  double weighted = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t piece = std::min(kPiece, n - i);
    const ExpSums sums =
        want_gradient ? exp_sums_store(x + i, max, piece) : exp_sums(x + i, max, piece);
    sum += sums.sum;
    weighted += sums.weighted;
  }
  if (want_gradient) {
    scale_row(x, static_cast<float>(scale / sum), n);
    x[target] -= scale;
  }
  const double log_sum = std::log(sum);
  return {.loss = static_cast<float>(log_sum - (double(target_logit) - double(max))),
          .entropy = static_cast<float>(log_sum - weighted / sum),
          .correct = is_correct ? 1 : 0,
          .counted = 1};
}

}  // namespace

void cross_entropy(float* logits, const int64_t* targets, int64_t rows, int64_t vocabulary,
                   float scale, bool want_gradient, CrossEntropyRow* row) {
  at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* x = logits + r * vocabulary;
      if (targets[r] >= 0) {
        row[r] = process_row(x, targets[r], vocabulary, scale, want_gradient);
        continue;
      }
      row[r] = {};
      if (want_gradient) std::fill(x, x + vocabulary, 0.0f);
    }
  });
}

}  // namespace strata::ops::cpu
