// AdamW (Loshchilov and Hutter 2017) over a flat shard in one pass over memory.
// Owns: the arithmetic of one update. Never: schedules, groups, clipping norms (optim/).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::ops {

struct AdamWStep {
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step;      // number of this update, from 1
  float grad_scale;  // multiplies the gradient first; carries the clip factor
};

// torch.optim.AdamW's formula: p *= 1 - lr wd; m and v updated;
// p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
// All fp32 [n], contiguous. `copy`: 16 bits [n], gets the new p rounded to nearest; may be
// undefined. Wrong shapes or types: InternalError.
void adamw_(at::Tensor param, const at::Tensor& grad, at::Tensor exp_avg, at::Tensor exp_avg_sq,
            const AdamWStep& options, const at::Tensor& copy = {});

}  // namespace strata::ops
