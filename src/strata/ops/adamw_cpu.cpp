// AdamW on the CPU: one pass over four arrays. Never: checks.
#include "strata/ops/adamw.h"

#include <ATen/Parallel.h>

#include "strata/ops/adamw_factors.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

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
           const AdamWStep& options) {
  const AdamWFactors factors = factors_of(options);
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    update(param + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin, end - begin, factors);
  });
}

}  // namespace strata::ops::cpu
