// (IA)^3 (Liu et al. 2022): trained factors on a linear layer's input or output. Owns: the
// mathematics of such a layer. Never: autograd; nn/linear.cpp calls these functions inside its own.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

struct Rescale {
  Parameter factors;  // of the input [1, in_features], of the output [out_features, 1], as in PEFT
  bool of_input;
};

// x times the factors, in the type of x.
at::Tensor rescaled(const at::Tensor& x, const Rescale& rescale);

// Given the gradient of rescaled(x): writes that of the factors and returns that of x.
at::Tensor rescale_backward(const at::Tensor& gradient, const at::Tensor& x, Rescale& rescale);

}  // namespace strata::nn
