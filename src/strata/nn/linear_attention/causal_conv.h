// The short causal convolution of each channel before linear attention, with SiLU, as an autograd
// function over packed documents. Owns: both and their backward. Never: the weight's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// y[t, c] = silu(sum over j of w[c, j] x[t - (K - 1) + j, c]) with x [T, channels] and `weight`
// [channels, 1, K] (a Conv1d of groups = channels); nothing before a document's first token.
// Memory: keeps x.
at::Tensor causal_conv_silu(const at::Tensor& x, Parameter& weight, const Batch& batch);

// The same of what follows `before` [K - 1, channels], without a gradient. An undefined `before` is
// a document's front; it becomes the last K - 1 rows of all.
at::Tensor causal_conv_silu_after(at::Tensor& before, const at::Tensor& x, const Parameter& weight);

}  // namespace strata::nn
