// Self-attention with rotary positions as one autograd function, causal except for encoders. Owns:
// rotation, attention and their backward, and the use of the cache. Never: projections.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/rope.h"
#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"
#include "strata/nn/prefix_projection.h"

namespace strata::nn {

struct AttentionOptions {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  double scale;
  int64_t layer;       // place in the cache
  int64_t window = 0;  // see ops/attention/attention.h; a prefix counts as tokens do
  // Tokens see those of the same `chunk` tokens alone, counted from a document's first on, and with
  // a prefix from the prefix' first; 0: all. Not with a window.
  int64_t chunk = 0;
  Parameter* prefix = nullptr;  // of prefix tuning, nn/virtual_tokens.h
  bool rotates = true;          // false: a layer without positions
  // What makes the prefix, in the first layer alone (nn/prefix_projection.h).
  PrefixProjection* projection = nullptr;
  // Dropout of the probabilities, while training; not with a prefix.
  double dropout = 0;
  double softcap = 0;     // of the scores, ops/attention/biased_attention.h; 0: none
  uint64_t place_id = 0;  // see nn/dropout.h
  // A fused projection gives q, k and v of one head after the other; num_heads of each.
  bool interleaved = false;
  // A number a head beside its scores, ops/attention/attention_sinks.h; null: none.
  Parameter* sinks = nullptr;
  // k and v are another layer's, which has put them into the cache at its place `layer`.
  bool reads_cache = false;
  // Added to the scores: fp32 [heads of the layer, 2 n + 1] by distance, as in
  // ops/attention/biased_attention.h, of which nothing trains; undefined: none. Not with a prefix.
  at::Tensor bias = {};
  // The first of num_heads among the layer's heads: sequence parallelism gives a rank a share of
  // them.
  int64_t first_head = 0;
  // False: tokens see those after them, too. Not with a cache or a prefix.
  bool is_causal = true;
};

// q [T, num_heads * D], k and v [T, num_kv_heads * D] -> [T, num_heads * D]. q and k are rotated in
// place: they must be fresh outputs that nothing else reads. Documents of the batch do not see each
// other; with context.generation.cache the tokens follow those in the cache (no backward). A prefix
// stands before the keys and values of every document, and of an empty cache; it is not rotated.
// Where the batch is a part of another (nn/attention/sequence_parallel.h), T are its tokens,
// documents are the whole's, and the call is collective over those who share it, as is its
// backward.
at::Tensor rotary_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            Rope& rope, const AttentionOptions& options,
                            const ForwardContext& context);

// The same without a rotation.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options, const ForwardContext& context);

// The same of a fused projection's output [T, (num_heads + 2 * num_kv_heads) * D]: q, k and v side
// by side.
at::Tensor fused_rotary_attention(const at::Tensor& qkv, Rope& rope,
                                  const AttentionOptions& options, const ForwardContext& context);

// The same without rotation.
at::Tensor fused_attention(const at::Tensor& qkv, const AttentionOptions& options,
                           const ForwardContext& context);

}  // namespace strata::nn
