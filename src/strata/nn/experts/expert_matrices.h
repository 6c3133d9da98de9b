// The matrices of a parameter of all experts as products take them, whatever their form at rest.
// Owns: memory for one that was decoded. Never: products.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// Of a parameter [experts, rows, columns]. Memory: one matrix in `type` where they rest in codes.
// Threads: one where they do.
class ExpertMatrices {
 public:
  // `type`: that of the activations. Requires: `weight` is gathered, and outlives this.
  ExpertMatrices(const Parameter& weight, at::ScalarType type);
  // [rows, columns]; of codes until the next call.
  at::Tensor of(size_t expert) const;

 private:
  const Parameter& weight_;
  at::Tensor decoded_;  // undefined: plain values
};

}  // namespace strata::nn
