// AdamW on the CPU: one pass over four arrays. Never: checks.
#include "strata/ops/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

struct Factors {
  float decay;  // 1 - lr * weight decay
  float beta2;
  float one_minus_beta1, one_minus_beta2;
  float step_size;     // lr / (1 - beta1^step)
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float grad_scale;
};

STRATA_VECTORIZED void update(float* __restrict param, const float* __restrict grad,
                              float* __restrict exp_avg, float* __restrict exp_avg_sq, int64_t n,
                              const Factors& factors) {
  const Factors f = factors;
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
  const auto step = static_cast<double>(options.step);
  const Factors factors{
      .decay = static_cast<float>(1.0 - options.learning_rate * options.weight_decay),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
      .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
      .step_size =
          static_cast<float>(options.learning_rate / (1.0 - std::pow(options.beta1, step))),
      .inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, step))),
      .eps = static_cast<float>(options.eps),
      .grad_scale = options.grad_scale};
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    update(param + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin, end - begin, factors);
  });
}

}  // namespace strata::ops::cpu
