// The gated delta rule over chunks of documents on CPUs: each chunk's tokens are solved together
// and the state goes from chunk to chunk, head by head, so that what it makes on the way stays in
// the cache. Owns: forward and backward of q, k, v, decays and rates. Never: where documents lie in
// lanes (nn/linear_attention/document_lanes.h), GPUs (nn/linear_attention/gated_delta_rule.cpp).
// Source: Yang, Kautz and Hatamizadeh 2024 ("Gated Delta Networks").
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/ops/linear_attention/chunk_lanes.h"

namespace strata::ops {

struct DeltaShape {
  int64_t num_key_heads;
  int64_t num_value_heads;  // a multiple: consecutive value heads share a key head
  int64_t key_dim;
  int64_t value_dim;

  int64_t key_channels() const { return num_key_heads * key_dim; }
  int64_t value_channels() const { return num_value_heads * value_dim; }
};

// qkv [T, 2 * key_channels + value_channels], fp32 or bf16: q, k and v side by side; g fp32 and
// beta [T, value heads]. Returns [T, value_channels] in the type of qkv.
at::Tensor delta_rule(const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta,
                      const DeltaShape& shape, const ChunkLanes& lanes);

// In the types of what they are gradients of.
struct DeltaRuleGradients {
  at::Tensor dqkv, dg, dbeta;
};
// Memory: each thread keeps the states of a lane before its chunks, and what the chunks add.
DeltaRuleGradients delta_rule_backward(const at::Tensor& dout, const at::Tensor& qkv,
                                       const at::Tensor& g, const at::Tensor& beta,
                                       const DeltaShape& shape, const ChunkLanes& lanes);

}  // namespace strata::ops
