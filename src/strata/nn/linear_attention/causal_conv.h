// The short causal convolution of each channel over packed documents as autograd functions: with
// SiLU, as it comes before linear attention, or between two gates, as it mixes tokens by itself
// (LFM2). Owns: both and their backward. Never: the weights' memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// y[t, c] = silu(bias[c] + sum over j of w[c, j] x[t - (K - 1) + j, c]) with x [T, channels],
// `weight` [channels, 1, K] (a Conv1d of groups = channels) and `bias` [channels], null: none;
// nothing before a document's first token.
// Memory: keeps x.
at::Tensor causal_conv_silu(const at::Tensor& x, Parameter& weight, const Batch& batch,
                            Parameter* bias = nullptr);

// The same of what follows `before` [K - 1, channels], without a gradient. An undefined `before` is
// a document's front; it becomes the last K - 1 rows of all.
at::Tensor causal_conv_silu_after(at::Tensor& before, const at::Tensor& x, const Parameter& weight,
                                  const Parameter* bias = nullptr);

// c * conv(b * x), without SiLU, of b, c and x side by side in `gates` [T, 3 * channels]. Returns
// [T, channels]. Memory: keeps `gates`.
at::Tensor gated_causal_conv(const at::Tensor& gates, Parameter& weight, const Batch& batch,
                             Parameter* bias = nullptr);

// The same of what follows `before`: b * x of earlier tokens.
at::Tensor gated_causal_conv_after(at::Tensor& before, const at::Tensor& gates,
                                   const Parameter& weight, const Parameter* bias = nullptr);

}  // namespace strata::nn
