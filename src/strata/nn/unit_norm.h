// RMSNorm without a weight. Owns: the autograd function around ops::rms_norm. Never: a parameter
// (nn/norm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/remakable.h"

namespace strata::nn {

// x [T, channels] / sqrt(mean(x^2) + eps), row by row, in the type of x.
at::Tensor unit_rms_norm(const at::Tensor& x, double eps);
// The same for layers that may make their input again.
Remakable remakable_unit_norm(const at::Tensor& x, double eps);

}  // namespace strata::nn
