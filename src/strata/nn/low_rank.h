// The low-rank branch of a linear layer (LoRA, Hu et al. 2021) and what identifies its dropout.
// Owns: the two weights and their factors. Never: the products; they are part of nn/linear.cpp, so
// that base and branch share one autograd function. adapters/ decides which layers get a branch.
#pragma once

#include <cstdint>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// y += B(A(dropout(x))) * scaling. The branch computes in the type of A: x is cast to it and the
// result is cast back, as PEFT does.
struct LowRankBranch {
  Parameter a;  // [r, in_features]
  Parameter b;  // [out_features, r]
  double scaling = 1.0;
  double dropout = 0.0;
  uint64_t layer_id = 0;  // distinguishes the dropout masks of the layers (I6)

  int64_t rank() const { return a.shape()[0]; }
  bool trains() const { return a.requires_grad() || b.requires_grad(); }
};

// The key of ops::dropout for one layer in one micro-step: a mix of seed, step, micro-step, layer.
uint64_t dropout_key(const DrawKey& draw, uint64_t layer_id);

}  // namespace strata::nn
