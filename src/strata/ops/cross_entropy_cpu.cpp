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

STRATA_VECTORIZED void cap_row(float* x, float cap, float inverse, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * tanh_vectorizable(x[i] * inverse);
}

// Capped logits become factor * exp(x - max) - constant times the slope of their cap.
STRATA_VECTORIZED void capped_gradient_row(float* x, float max, float factor, float constant,
                                           float inverse, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float t = x[i] * inverse;
    x[i] = (exp_vectorizable(x[i] - max) * factor - constant) * (1.0f - t * t);
  }
}

STRATA_VECTORIZED void add_constant_row(float* x, float constant, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += constant;
}

STRATA_VECTORIZED float distance_sum(const float* x, float max, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] - max;
  return sum;
}

// fp32 sums are carried over this many elements at most, double beyond.
constexpr int64_t kPiece = 4096;

// The mean of x - max.
double mean_distance(const float* x, float max, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    sum += distance_sum(x + i, max, std::min(kPiece, n - i));
  }
  return sum / static_cast<double>(n);
}

CrossEntropyRow process_row(float* x, int64_t target, int64_t n, float scale, bool want_gradient,
                            const CrossEntropyOptions& o) {
  const bool is_capped = o.softcap > 0;
  const float inverse = is_capped ? 1.0f / o.softcap : 0.0f;
  if (is_capped) cap_row(x, o.softcap, inverse, n);
  const float max = max_row(x, n);
  const float target_logit = x[target];
  const bool is_correct = target_logit == max && std::find(x, x + target, max) == x + target;
  // From the target's distance to the maximum to what the loss is of.
  double distance = double(target_logit) - double(max);
  if (o.smoothing > 0) {
    distance += o.smoothing * (mean_distance(x, max, n) - distance);
  }
  double sum = 0;
  double weighted = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t piece = std::min(kPiece, n - i);
    const ExpSums sums = want_gradient && !is_capped ? exp_sums_store(x + i, max, piece)
                                                     : exp_sums(x + i, max, piece);
    sum += sums.sum;
    weighted += sums.weighted;
  }
  const float shared = scale * o.smoothing / static_cast<float>(n);
  if (want_gradient && is_capped) {
    capped_gradient_row(x, max, static_cast<float>(scale / sum), shared, inverse, n);
    const float t = target_logit * inverse;
    x[target] -= scale * (1.0f - o.smoothing) * (1.0f - t * t);
  } else if (want_gradient) {
    scale_row(x, static_cast<float>(scale / sum), n);
    if (o.smoothing > 0) add_constant_row(x, -shared, n);
    x[target] -= scale * (1.0f - o.smoothing);
  }
  const double log_sum = std::log(sum);
  return {.loss = static_cast<float>(log_sum - distance),
          .entropy = static_cast<float>(log_sum - weighted / sum),
          .correct = is_correct ? 1 : 0,
          .counted = 1};
}

}  // namespace

void cross_entropy(float* logits, const int64_t* targets, int64_t rows, int64_t vocabulary,
                   float scale, bool want_gradient, const CrossEntropyOptions& options,
                   CrossEntropyRow* row) {
  at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* x = logits + r * vocabulary;
      if (targets[r] >= 0) {
        row[r] = process_row(x, targets[r], vocabulary, scale, want_gradient, options);
        continue;
      }
      row[r] = {};
      if (want_gradient) std::fill(x, x + vocabulary, 0.0f);
    }
  });
}

}  // namespace strata::ops::cpu
