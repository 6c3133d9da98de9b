// The gated delta rule as an autograd function: linear attention whose state forgets at a rate of
// its own and is corrected by what it does not yet say. Owns: the rule over chunks and its
// backward. Never: projections, convolution, norms. Source: Yang, Kautz and Hatamizadeh 2024
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

namespace strata::nn {

struct DeltaShape {
  int64_t num_key_heads;
  int64_t num_value_heads;  // a multiple: consecutive value heads share a key head
  int64_t key_dim;
  int64_t value_dim;

  int64_t key_channels() const { return num_key_heads * key_dim; }
  int64_t value_channels() const { return num_value_heads * value_dim; }
};

// qkv [T, 2 * key_channels + value_channels], q, k and v side by side; g fp32 and beta [T, value
// heads]. Returns [T, value_channels] in the type of qkv.
// Memory: keeps its arguments; computes some heads at a time, in forward and backward, with some
// 512 MiB for those (more only where one head takes more). `kept`: kept_attention.h.
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
