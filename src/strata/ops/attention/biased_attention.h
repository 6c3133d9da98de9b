// Attention between the documents of two sequences (or of one), causal or not, with capped scores,
// a bias by relative position, or vectors of positions, and dropout of the probabilities: what T5,
// Gemma 2 and DeBERTa compute. Owns:
// the check of the arguments and the choice of the device. Never: projections, the table of
// buckets, caches.
//
// q [Tq, Hq, D], k and v [Tk, Hkv, D] as in ops/attention/attention.h. The kernels are the same.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "strata/ops/attention/attention.h"

namespace strata::ops {

struct BiasedAttentionOptions {
  // Document d is tokens offsets[d] .. offsets[d + 1] of q and key_offsets[d] .. of k and v. Each
  // has at least one of both.
  std::span<const int64_t> offsets;
  std::span<const int64_t> key_offsets;
  double scale = 1;
  // Query i of a document stands at the position i + key_lead of its keys; causal: it sees those up
  // to there.
  int64_t key_lead = 0;
  bool causal = false;
  int64_t window = 0;  // as in ops/attention/attention.h
  // Scores, scaled, become softcap * tanh(score / softcap) before anything is added (Gemma 2,
  // Riviere et al. 2024); 0: they stay.
  double softcap = 0;
  // Dropout of the probabilities, with one layer's key (ops/dropout.h).
  double dropout = 0;
  uint64_t dropout_key = 0;
  at::Tensor token_keys = {};  // int64 [Tq], with dropout
  // Vectors of relative positions (He et al. 2021), [2 n + 1, Hq, D] of q's type, of the key at n +
  // j - i - key_lead: a score has its query's product with the first and its key's with the second
  // beside query times key, before the scale. Undefined: none. With as many heads of k as of q.
  at::Tensor key_positions = {}, query_positions = {};

  bool has_positions() const { return key_positions.defined() || query_positions.defined(); }
};

// `bias`: fp32 [Hq, 2 n + 1], added to the score of key j and query i at n + j - i - key_lead, n
// at least the longest distance; undefined: none. out and lse as in ops/attention/attention.h.
// Errors: InternalError for what does not fit.
AttentionResult biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, const BiasedAttentionOptions& options);

struct BiasedAttentionGradients {
  at::Tensor dq, dk, dv;                                  // contiguous
  at::Tensor dbias = {};                                  // fp32; undefined unless `wants_bias`
  at::Tensor dkey_positions = {}, dquery_positions = {};  // fp32, of those that there are
};

BiasedAttentionGradients biased_attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& bias,
                                                   const AttentionResult& forward,
                                                   const BiasedAttentionOptions& options,
                                                   bool wants_bias);

}  // namespace strata::ops
