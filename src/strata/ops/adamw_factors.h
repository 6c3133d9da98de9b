// The numbers of one AdamW update that are the same for every element, in the precision in which
// kernels use them. Owns: that arithmetic. Never: tensors; seen by the kernels of every device.
#pragma once

#include <cmath>
#include <cstdint>

namespace strata::ops {

struct AdamWFactors {
  float decay;  // 1 - lr * weight decay
  float beta2;
  float one_minus_beta1, one_minus_beta2;
  float step_size;     // lr / (1 - beta1^step)
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float grad_scale;
};

// `Step`: AdamWStep, whose header needs libtorch.
template <typename Step>
AdamWFactors factors_of(const Step& options) {
  const auto step = static_cast<double>(options.step);
  return {.decay = static_cast<float>(1.0 - options.learning_rate * options.weight_decay),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .step_size =
              static_cast<float>(options.learning_rate / (1.0 - std::pow(options.beta1, step))),
          .inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, step))),
          .eps = static_cast<float>(options.eps),
          .grad_scale = options.grad_scale};
}

}  // namespace strata::ops
