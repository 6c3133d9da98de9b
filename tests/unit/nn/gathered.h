// A parameter with memory, as the engine gives it: random value, gradient filled with NaN so that a
// first write which adds instead of overwriting shows.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

inline void give_memory(Parameter& parameter, at::ScalarType type = at::kFloat) {
  parameter.attach_value(at::randn(parameter.shape()).mul_(0.3).to(type));
  parameter.attach_grad(at::full(parameter.shape(), std::nan("")).to(type), /*overwrite=*/true);
}

inline at::Tensor gradient_of(Parameter& parameter) { return parameter.grad().tensor; }

// The value as a double-precision leaf for the reference computed by autograd.
inline at::Tensor reference_leaf(const at::Tensor& value) {
  return value.detach().to(at::kDouble).requires_grad_(true);
}

inline double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor e = expected.detach().to(at::kDouble);
  return ((found.detach().to(at::kDouble) - e).norm() / e.norm()).item<double>();
}

}  // namespace strata::nn
