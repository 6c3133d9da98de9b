// Products with a layer's weight, whatever its form at rest. Owns: the choice between dense and
// quantised weights. Never: autograd, bias, branches.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// y [T, out] = x W^T + beta * y, beta 0 or 1, for W [out, in]. Requires: W is gathered.
void multiply_by_weight_into(at::Tensor y, const at::Tensor& x, const Parameter& weight,
                             float beta);

// dx [T, in] = dy W + beta * dx.
void multiply_by_weight_back_into(at::Tensor dx, const at::Tensor& dy, const Parameter& weight,
                                  float beta);

}  // namespace strata::nn
