// LayerNorm on the CPU, one row at a time in fp32. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

STRATA_VECTORIZED float sum_row(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// sum of (x - mean)^2.
STRATA_VECTORIZED float square_sum_about(const float* x, float mean, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

STRATA_VECTORIZED void normalize_row(const float* x, float mean, float rstd, const float* weight,
                                     const float* bias, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
}

STRATA_VECTORIZED float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// sum of dy * weight * (x - mean).
STRATA_VECTORIZED float dot_about(const float* dy, const float* weight, const float* x, float mean,
                                  int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += dy[i] * weight[i] * (x[i] - mean);
  return sum;
}

// With g = dy * weight and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)).
// `along` is rstd * mean(g * h).
STRATA_VECTORIZED void gradient_row(const float* dy, const float* weight, const float* x,
                                    float mean, float rstd, float mean_g, float along, float* dx,
                                    int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = rstd * (dy[i] * weight[i] - mean_g - (x[i] - mean) * along);
  }
}

STRATA_VECTORIZED void add_row(const float* x, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

STRATA_VECTORIZED void add_weight_gradient_row(const float* dy, const float* x, float mean,
                                               float rstd, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * ((x[i] - mean) * rstd);
}

constexpr int64_t kGrain = 16;  // rows worth a thread

// Rows per partial sum of the gradients of weight and bias: fixed by the number of tokens alone, so
// that the result does not depend on the threads.
int64_t rows_per_block(int64_t tokens) { return std::max<int64_t>(64, (tokens + 31) / 32); }

void write_sum(const std::vector<float>& partial, int64_t blocks, int64_t n,
               const LayerNormSum& to) {
  if (to.data == nullptr) return;
  std::vector<float> sum(static_cast<size_t>(n), 0.0f), scratch(static_cast<size_t>(n));
  if (to.beta != 0) copy_row(to.type, to.data, n, sum.data());
  for (int64_t b = 0; b < blocks; ++b) add_row(partial.data() + b * n, sum.data(), n);
  float* row = begin_row(to.type, to.data, scratch.data());
  std::copy(sum.begin(), sum.end(), row);
  finish_row(to.type, row, n, to.data);
}

// One row's gradient, `scratch` [4 n].
void backward_row(const LayerNormArguments& a, const LayerNormGradients& g, const float* weight,
                  int64_t t, float* scratch, float* of_weight, float* of_bias) {
  const int64_t n = a.channels;
  const float* x = read_row(a.type, at_index(a.type, a.x, t * n), n, scratch);
  const float* dy = read_row(a.type, at_index(a.type, g.dy, t * n), n, scratch + n);
  void* to = at_index(a.type, g.dx, t * n);
  float* dx = begin_row(a.type, to, scratch + 2 * n);
  const float mean = g.mean[t], rstd = g.rstd[t], count = static_cast<float>(n);
  const float mean_g = dot_row(dy, weight, n) / count;
  const float along = dot_about(dy, weight, x, mean, n) / count * rstd * rstd;
  gradient_row(dy, weight, x, mean, rstd, mean_g, along, dx, n);
  if (g.residual != nullptr) {
    add_row(read_row(a.type, at_index(a.type, g.residual, t * n), n, scratch + 3 * n), dx, n);
  }
  finish_row(a.type, dx, n, to);
  if (of_weight != nullptr) add_weight_gradient_row(dy, x, mean, rstd, of_weight, n);
  if (of_bias != nullptr) add_row(dy, of_bias, n);
}

}  // namespace

void layer_norm(const LayerNormArguments& a, const LayerNormOutputs& out) {
  const int64_t n = a.channels;
  std::vector<float> weight_scratch(static_cast<size_t>(n)), bias_scratch(static_cast<size_t>(n));
  const float* weight = read_row(a.weight_type, a.weight, n, weight_scratch.data());
  const float* bias = read_row(out.bias_type, out.bias, n, bias_scratch.data());
  at::parallel_for(0, a.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(2 * n));
    for (int64_t t = begin; t < end; ++t) {
      const float* x = read_row(a.type, at_index(a.type, a.x, t * n), n, scratch.data());
      void* to = at_index(a.type, out.y, t * n);
      const float mean = sum_row(x, n) / static_cast<float>(n);
      const double variance = double(square_sum_about(x, mean, n)) / double(n);
      const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + out.eps));
      float* y = begin_row(a.type, to, scratch.data() + n);
      normalize_row(x, mean, rstd, weight, bias, y, n);
      finish_row(a.type, y, n, to);
      out.mean[t] = mean;
      out.rstd[t] = rstd;
    }
  });
}

void layer_norm_backward(const LayerNormArguments& a, const LayerNormGradients& g) {
  const int64_t n = a.channels;
  const int64_t block_rows = rows_per_block(a.tokens);
  const int64_t blocks = (a.tokens + block_rows - 1) / block_rows;
  std::vector<float> weight_scratch(static_cast<size_t>(n));
  const float* weight = read_row(a.weight_type, a.weight, n, weight_scratch.data());
  const auto partials = [&](const LayerNormSum& sum) {
    return std::vector<float>(static_cast<size_t>(sum.data != nullptr ? blocks * n : 0), 0.0f);
  };
  std::vector<float> of_weight = partials(g.dweight), of_bias = partials(g.dbias);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(4 * n));
    for (int64_t t = begin * block_rows; t < std::min(end * block_rows, a.tokens); ++t) {
      const int64_t at = t / block_rows * n;
      backward_row(a, g, weight, t, scratch.data(),
                   of_weight.empty() ? nullptr : of_weight.data() + at,
                   of_bias.empty() ? nullptr : of_bias.data() + at);
    }
  });
  write_sum(of_weight, blocks, n, g.dweight);
  write_sum(of_bias, blocks, n, g.dbias);
}

}  // namespace strata::ops::cpu
