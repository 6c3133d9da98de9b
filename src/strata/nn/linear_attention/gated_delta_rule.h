// The gated delta rule as an autograd function: linear attention whose state forgets at a rate of
// its own and is corrected by what it does not yet say. Owns: the rule over chunks and its
// backward. Never: projections, convolution, norms, kernels. Source: Yang, Kautz and Hatamizadeh
// 2024
// ("Gated Delta Networks"); in chunks by the UT transform of Yang et al. 2024 ("DeltaNet").
//
// Of each value head, token by token, in fp32:
//   S = exp(g_t) S;  S = S + k_t (beta_t (v_t - S^T k_t))^T;  o_t = S^T q_t / sqrt(key_dim)
// with q and k of length 1 (1e-6 below the root), the state S [key_dim, value_dim] zero at a
// document's front.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/linear_attention/document_lanes.h"
#include "strata/ops/linear_attention/delta_rule.h"

namespace strata::nn {

using ops::DeltaShape;

// qkv [T, 2 * key_channels + value_channels], q, k and v side by side; g fp32 and beta [T, value
// heads]. Returns [T, value_channels] in the type of qkv.
// Memory: keeps its arguments. On GPUs it computes some heads at a time, in forward and backward,
// with some 512 MiB for those (more only where one head takes more); on CPUs ops::delta_rule does.
// `kept`: kept_attention.h.
at::Tensor gated_delta_rule(const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta,
                            const DeltaShape& shape, const DocumentLanes& lanes,
                            KeptAttention* kept = nullptr);

// The same of tokens that follow those of `state` [value heads, key_dim, value_dim] fp32, which
// becomes that after them; undefined: there are none. Without a gradient.
at::Tensor gated_delta_rule_after(at::Tensor& state, const at::Tensor& qkv, const at::Tensor& g,
                                  const at::Tensor& beta, const DeltaShape& shape);

// (I + A)^-1 for the strictly lower triangles of `a` [..., n, n], n a power of two.
at::Tensor unit_lower_inverse(const at::Tensor& a);

}  // namespace strata::nn
