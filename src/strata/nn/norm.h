// RMSNorm over a parameter. Owns: the autograd function around ops::rms_norm. Never: the kernel.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::nn {

class RmsNorm {
 public:
  // `path`: module path such as "model.layers.0.input_layernorm"; `weight`: its name there.
  RmsNorm(const std::string& path, int64_t hidden, double eps, at::ScalarType storage,
          ops::RmsNormKind kind = ops::RmsNormKind::kLlama, const std::string& weight = "weight");

  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }
  double eps() const { return eps_; }
  ops::RmsNormKind kind() const { return kind_; }

  // x [T, hidden] -> [T, hidden]; of wider rows [T, heads * hidden] each head by itself.
  at::Tensor forward(const at::Tensor& x);
  // The same for layers that may make their input again.
  Remakable forward_remakable(const at::Tensor& x);

  // The norm of x and x itself for the residual branch. Using `residual` instead of x lets one pass
  // add both gradients.
  struct Branches {
    Remakable normed;
    at::Tensor residual;
  };
  Branches forward_with_residual(const at::Tensor& x);

 private:
  Parameter weight_;
  double eps_;
  ops::RmsNormKind kind_;
};

}  // namespace strata::nn
