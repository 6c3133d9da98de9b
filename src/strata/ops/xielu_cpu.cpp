// xIELU on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/vectorize.h"
#include "strata/ops/xielu_kernels.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kGrain = 8;  // rows worth a thread

// expm1(m) - m for m <= 0. Near 0 it is m^2 times a polynomial, in which nothing cancels out.
STRATA_INLINE float bend_of(float m) {
  float p = 1.9875691500e-4f;
  p = p * m + 1.3981999507e-3f;
  p = p * m + 8.3334519073e-3f;
  p = p * m + 4.1665795894e-2f;
  p = p * m + 1.6666665459e-1f;
  p = p * m + 5.0000001201e-1f;
  const float far = exp_vectorizable(m) - 1.0f - m;
  return m > -0.34f ? p * m * m : far;
}

struct Numbers {
  float alpha_p, alpha_n, beta, eps;
  explicit Numbers(const float* n) : alpha_p(n[0]), alpha_n(n[1]), beta(n[2]), eps(n[3]) {}
};

STRATA_VECTORIZED void xielu_row(const float* x, float* y, int64_t n, float alpha_p, float alpha_n,
                                 float beta, float eps) {
  for (int64_t i = 0; i < n; ++i) {
    const float m = x[i] < eps ? x[i] : eps;
    const float above = alpha_p * x[i] * x[i];
    const float below = alpha_n * (bend_of(m) + (m - x[i]));
    y[i] = (x[i] > 0.0f ? above : below) + beta * x[i];
  }
}

// Adds what the numbers get to `sums`. dx may be x: each element is read before it is written.
STRATA_VECTORIZED void xielu_backward_row(const float* x, const float* dy, float* dx, float* sums,
                                          int64_t n, const Numbers& by) {
  const float alpha_p = by.alpha_p, alpha_n = by.alpha_n, beta = by.beta, eps = by.eps;
  float of_p = 0, of_n = 0;
#pragma omp simd reduction(+ : of_p, of_n)
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i], d = dy[i];
    const bool is_above = v > 0.0f;
    const float m = v < eps ? v : eps;
    const float bend = bend_of(m);
    const float square = v * v, rest = bend + (m - v);
    of_p += is_above ? d * square : 0.0f;
    of_n += is_above ? 0.0f : d * rest;
    const float above = 2.0f * alpha_p * v;
    const float below = alpha_n * (v < eps ? bend + m : -1.0f);
    dx[i] = d * ((is_above ? above : below) + beta);
  }
  sums[0] = of_p;
  sums[1] = of_n;
}

}  // namespace

void xielu(const XieluArguments& a, const void* x, void* y) {
  const Numbers by(a.numbers);
  at::parallel_for(0, a.rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * a.columns);
    for (int64_t r = begin; r < end; ++r) {
      void* const to = at_index(a.type, y, r * a.columns);
      float* const out = begin_row(a.type, to, scratch.data() + a.columns);
      xielu_row(read_row(a.type, at_index(a.type, x, r * a.columns), a.columns, scratch.data()),
                out, a.columns, by.alpha_p, by.alpha_n, by.beta, by.eps);
      finish_row(a.type, out, a.columns, to);
    }
  });
}

void xielu_backward(const XieluArguments& a, void* x, const void* dy, float* sums) {
  const Numbers by(a.numbers);
  at::parallel_for(0, a.rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * a.columns);
    float* const of_dy = scratch.data() + a.columns;
    for (int64_t r = begin; r < end; ++r) {
      void* const both = at_index(a.type, x, r * a.columns);
      // In bf16 the result overwrites the converted input.
      const float* const from = read_row(a.type, both, a.columns, scratch.data());
      float* const out = begin_row(a.type, both, scratch.data());
      xielu_backward_row(from,
                         read_row(a.type, at_index(a.type, dy, r * a.columns), a.columns, of_dy),
                         out, sums + 2 * r, a.columns, by);
      finish_row(a.type, out, a.columns, both);
    }
  });
}

}  // namespace strata::ops::cpu
