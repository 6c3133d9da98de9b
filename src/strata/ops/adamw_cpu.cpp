// AdamW on the CPU: one pass over four arrays, and one to a rounded copy. Never: checks.
#include "strata/ops/adamw.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "strata/ops/adamw_factors.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/element.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Elements that are still in the first cache when they are rounded.
constexpr int64_t kRounded = 4096;

STRATA_VECTORIZED void update(float* __restrict param, const float* __restrict grad,
                              float* __restrict exp_avg, float* __restrict exp_avg_sq, int64_t n,
                              const AdamWFactors& factors) {
  const AdamWFactors f = factors;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * f.grad_scale;
    const float m = exp_avg[i] + (g - exp_avg[i]) * f.one_minus_beta1;
    const float v = exp_avg_sq[i] * f.beta2 + g * g * f.one_minus_beta2;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * f.decay - f.step_size * m / (__builtin_sqrtf(v) * f.inverse_root + f.eps);
  }
}

}  // namespace

void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
           const AdamWStep& options, uint16_t* copy) {
  const AdamWFactors factors = factors_of(options);
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kRounded) {
      const int64_t length = std::min(kRounded, end - i);
      update(param + i, grad + i, exp_avg + i, exp_avg_sq + i, length, factors);
      if (copy != nullptr) narrow(param + i, copy + i, length);
    }
  });
}

}  // namespace strata::ops::cpu
