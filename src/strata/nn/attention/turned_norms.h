// The norms of heads of queries and keys with the rotation after them, as one function where that
// is what a model does. Owns: the choice and the autograd function. Never: the kernel
// (ops/norm_rope.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/rope.h"
#include "strata/nn/batch.h"
#include "strata/nn/norm.h"

namespace strata::nn {

struct HeadNorms {
  RmsNorm& queries;
  RmsNorm& keys;
};

// q, k [T, heads * D] become their norms, each head by itself or all channels of a token at once,
// as many as a norm has; turned by `rope` (null: they do not turn) where the return value is true.
// Where it is false whoever attends turns them.
bool norm_and_turn(const HeadNorms& norms, at::Tensor& q, at::Tensor& k, Rope* rope,
                   const ForwardContext& context);

}  // namespace strata::nn
