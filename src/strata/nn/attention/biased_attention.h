// Attention with a bias by relative position as one autograd function. Owns: attention and its
// backward over ops/attention/biased_attention.h. Never: projections, the bias
// (nn/attention/relative_bias.h), caches.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

struct BiasedAttentionShape {
  int64_t num_heads;
  int64_t head_dim;
  std::vector<int64_t> offsets;      // documents of q
  std::vector<int64_t> key_offsets;  // documents of k and v
  double scale = 1;                  // of the scores
  bool causal = false;
  int64_t key_lead = 0;   // position of a document's first query among its keys
  double dropout = 0;     // of the probabilities, while training
  uint64_t place_id = 0;  // see nn/dropout.h
};

// q [Tq, H * C], k and v [Tk, H * C] -> [Tq, H * C]. `bias` fp32 [H, 2 n +
// 1] as in ops/attention/biased_attention.h, or undefined. With dropout the tokens of q are
// context.batch's.
at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& bias, const BiasedAttentionShape& shape,
                            const ForwardContext& context);

}  // namespace strata::nn
