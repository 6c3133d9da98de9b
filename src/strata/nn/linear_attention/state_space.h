// The state space of Mamba-2 as an autograd function: a state of each head that forgets at a rate
// of the token's own. Owns: the rule over chunks and its backward. Never: projections, convolution,
// the norm after it. Source: Dao and Gu 2024 ("Transformers are SSMs").
//
// Of each head, token by token, in fp32, with d the token's step and A = -exp(log_rate):
//   S = exp(d A) S + B (d x)^T;  y = S^T C + skip x
// with the state S [state_dim, head_dim] zero at a document's front. Heads of one group share B and
// C [state_dim].
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/linear_attention/document_lanes.h"
#include "strata/nn/parameter.h"
#include "strata/ops/linear_attention/state_space.h"

namespace strata::nn {

using ops::StateSpaceShape;

// [heads] each.
struct StateSpaceWeights {
  Parameter* log_rate;
  Parameter* skip;
};

// xbc [T, channels + 2 * group_channels], x, B and C side by side; steps fp32 [T, heads]. Returns
// [T, channels] in the type of xbc.
// Memory: keeps its arguments. On GPUs, and in lanes that several documents share, it computes some
// heads of a group at a time, in forward and backward, with some 512 MiB for those (more only where
// one head takes more); else ops::state_space does. `kept`: kept_attention.h.
at::Tensor state_space(const at::Tensor& xbc, const at::Tensor& steps,
                       const StateSpaceWeights& weights, const StateSpaceShape& shape,
                       const DocumentLanes& lanes, KeptAttention* kept = nullptr);

// The same of tokens that follow those of `state` [heads, state_dim, head_dim] fp32, which becomes
// that after them; undefined: there are none. Without a gradient.
at::Tensor state_space_after(at::Tensor& state, const at::Tensor& xbc, const at::Tensor& steps,
                             const StateSpaceWeights& weights, const StateSpaceShape& shape);

}  // namespace strata::nn
