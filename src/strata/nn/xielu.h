// The activation xIELU with its parameters: alpha_p and alpha_n, which train, and beta and eps,
// buffers that files hold. Owns: these, and the autograd function around ops/xielu.h. Never: the
// kernel.
//
// Source: transformers XIELUActivation: its alphas are softplus(alpha_p), beta + softplus(alpha_n).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"

namespace strata::nn {

class Xielu {
 public:
  // `path`: of the module, such as "model.layers.0.mlp.act_fn".
  Xielu(const std::string& path, at::ScalarType storage);

  void append_parameters(std::vector<Parameter*>& list);
  // x [T, intermediate], a fresh output that nothing else reads: backward takes its memory for the
  // gradient.
  Remakable forward(const at::Tensor& x);
  // What a parameter of this name begins with; nothing where it is none of these.
  static std::optional<double> initial_value(const std::string& name);

 private:
  // The numbers in the form that ops/xielu.h takes.
  at::Tensor numbers() const;

  Parameter alpha_p_, alpha_n_, beta_, eps_;
};

}  // namespace strata::nn
