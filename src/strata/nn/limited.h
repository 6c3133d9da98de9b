// Values that are cut off at a limit of their size, as one autograd function. Owns: which of them
// have a gradient. Never: the limit of a gate (ops/clamped_swiglu.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::nn {

// x where it lies from -limit on and up to limit, else the nearer end, without a gradient. Memory:
// keeps a byte an element.
at::Tensor limited(const at::Tensor& x, double limit);

}  // namespace strata::nn
