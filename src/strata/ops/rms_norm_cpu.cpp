// RMSNorm on the CPU, one row at a time in fp32. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

STRATA_VECTORIZED float square_sum_row(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

STRATA_VECTORIZED void scale_multiply_row(const float* x, float rstd, const float* weight, float* y,
                                          int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * weight[i];
}

// The same from fp32 values of bf16 with both roundings.
STRATA_VECTORIZED void scale_multiply_row_bf16(const float* x, float rstd, const float* weight,
                                               uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(from_bf16(to_bf16(x[i] * rstd)) * weight[i]);
}

// With one rounding; `weight` is what read_weight() makes of the stored one.
STRATA_VECTORIZED void scale_multiply_row_once(const float* x, float rstd, const float* weight,
                                               uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i] * rstd * weight[i]);
}

// sum of dy * weight * x.
STRATA_VECTORIZED float triple_dot_row(const float* dy, const float* weight, const float* x,
                                       int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += dy[i] * weight[i] * x[i];
  return sum;
}

// dx = rstd * (dy * weight - x * mean_dot), where mean_dot = rstd^2 * mean(dy * weight * x).
STRATA_VECTORIZED void gradient_row(const float* dy, const float* weight, const float* x,
                                    float rstd, float mean_dot, float* dx, int64_t n) {
#pragma omp simd  // dx may be dy
  for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] * weight[i] - x[i] * mean_dot);
}

STRATA_VECTORIZED void gradient_add_row(const float* dy, const float* weight, const float* x,
                                        float rstd, float mean_dot, const float* residual,
                                        float* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = residual[i] + rstd * (dy[i] * weight[i] - x[i] * mean_dot);
  }
}

STRATA_VECTORIZED void add_weight_gradient_row(const float* dy, const float* x, float rstd,
                                               float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * x[i] * rstd;
}

STRATA_VECTORIZED void add_row(const float* x, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

constexpr int64_t kGrain = 16;  // rows worth a thread

// What x * rstd is multiplied by: the weight itself, or `scratch` [channels].
const float* read_weight(const RmsNormArguments& a, std::vector<float>& scratch) {
  if (a.kind != RmsNormKind::kGemma) {
    return read_row(a.weight_type, a.weight, a.channels, scratch.data());
  }
  copy_row(a.weight_type, a.weight, a.channels, scratch.data());
  for (float& value : scratch) value += 1.0f;
  return scratch.data();
}

// Rows per partial sum of the weight gradient: fixed by the number of tokens alone, so that the
// result does not depend on the threads.
int64_t rows_per_block(int64_t tokens) { return std::max<int64_t>(64, (tokens + 31) / 32); }

void write_weight_gradient(const std::vector<float>& partial, int64_t blocks, int64_t n,
                           const RmsNormGradients& g) {
  std::vector<float> sum(n, 0.0f), scratch(n);
  if (g.beta != 0) copy_row(g.dweight_type, g.dweight, n, sum.data());
  for (int64_t b = 0; b < blocks; ++b) add_row(partial.data() + b * n, sum.data(), n);
  float* row = begin_row(g.dweight_type, g.dweight, scratch.data());
  std::copy(sum.begin(), sum.end(), row);
  finish_row(g.dweight_type, row, n, g.dweight);
}

}  // namespace

void rms_norm(const RmsNormArguments& a, void* y, double eps) {
  const int64_t n = a.channels;
  std::vector<float> weight_scratch(n);
  const float* weight = read_weight(a, weight_scratch);
  at::parallel_for(0, a.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(n);
    for (int64_t t = begin; t < end; ++t) {
      const float* x = read_row(a.type, at_index(a.type, a.x, t * n), n, scratch.data());
      void* to = at_index(a.type, y, t * n);
      a.rstd[t] =
          static_cast<float>(1.0 / std::sqrt(double(square_sum_row(x, n)) / double(n) + eps));
      if (a.type == Element::kFloat) {
        scale_multiply_row(x, a.rstd[t], weight, static_cast<float*>(to), n);
      } else if (a.kind != RmsNormKind::kLlama) {
        scale_multiply_row_once(x, a.rstd[t], weight, static_cast<uint16_t*>(to), n);
      } else {
        scale_multiply_row_bf16(x, a.rstd[t], weight, static_cast<uint16_t*>(to), n);
      }
    }
  });
}

void rms_norm_backward(const RmsNormArguments& a, const RmsNormGradients& g) {
  const int64_t n = a.channels;
  const int64_t block_rows = rows_per_block(a.tokens);
  const int64_t blocks = (a.tokens + block_rows - 1) / block_rows;
  std::vector<float> weight_scratch(n);
  const float* weight = read_weight(a, weight_scratch);
  std::vector<float> partial(g.dweight != nullptr ? blocks * n : 0, 0.0f);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(4 * n);
    for (int64_t t = begin * block_rows; t < std::min(end * block_rows, a.tokens); ++t) {
      const float* x = read_row(a.type, at_index(a.type, a.x, t * n), n, scratch.data());
      const float* dy = read_row(a.type, at_index(a.type, g.dy, t * n), n, scratch.data() + n);
      void* to = at_index(a.type, g.dx, t * n);
      float* dx = begin_row(a.type, to, scratch.data() + 2 * n);
      const float rstd = a.rstd[t];
      // Before dx is written, where dy may rest.
      if (g.dweight != nullptr) {
        add_weight_gradient_row(dy, x, rstd, partial.data() + t / block_rows * n, n);
      }
      const float mean_dot = triple_dot_row(dy, weight, x, n) / static_cast<float>(n) * rstd * rstd;
      if (g.residual == nullptr) {
        gradient_row(dy, weight, x, rstd, mean_dot, dx, n);
      } else {
        const float* residual =
            read_row(a.type, at_index(a.type, g.residual, t * n), n, scratch.data() + 3 * n);
        gradient_add_row(dy, weight, x, rstd, mean_dot, residual, dx, n);
      }
      finish_row(a.type, dx, n, to);
    }
  });
  if (g.dweight != nullptr) write_weight_gradient(partial, blocks, n, g);
}

}  // namespace strata::ops::cpu
