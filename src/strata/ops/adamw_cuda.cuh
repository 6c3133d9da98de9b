// The update of one element, shared by the kernels with moments in 32 and in 8 bits. Seen by nvcc
// alone. Never: memory.
#pragma once

#include <cuda_runtime.h>

#include "strata/ops/adamw_factors.h"

namespace strata::ops::cuda {

__device__ inline void update_one(float& param, float grad, float& exp_avg, float& exp_avg_sq,
                                  const AdamWFactors& f) {
  const float g = grad * f.grad_scale;
  exp_avg += (g - exp_avg) * f.one_minus_beta1;
  exp_avg_sq = exp_avg_sq * f.beta2 + g * g * f.one_minus_beta2;
  param = param * f.decay - f.step_size * exp_avg / (sqrtf(exp_avg_sq) * f.inverse_root + f.eps);
}

}  // namespace strata::ops::cuda
