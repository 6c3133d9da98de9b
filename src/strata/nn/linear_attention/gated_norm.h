// RMSNorm of groups of channels after a gate, as state spaces end (Mamba-2): of y silu(z), or of y
// before the gate (Falcon-H1), in fp32 and rounded once. Owns: its weight and the autograd
// function. Never: norms of whole rows without a gate (nn/norm.h).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

class GatedNorm {
 public:
  struct Options {
    int64_t channels;
    int64_t num_groups = 1;  // of as many channels each
    double eps;
    bool gate_comes_first = true;  // what is normalised is gated already
  };

  // `path`: module path such as "model.layers.0.mamba.norm".
  GatedNorm(const std::string& path, const Options& options, at::ScalarType storage);

  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }

  // y, z [T, channels] -> [T, channels] in the type of y. Memory: keeps both.
  at::Tensor forward(const at::Tensor& y, const at::Tensor& z);

 private:
  Parameter weight_;
  Options options_;
};

}  // namespace strata::nn
