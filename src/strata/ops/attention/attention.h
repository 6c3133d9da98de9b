// Attention inside each document, causal or both ways, with grouped-query heads, and its gradients.
// Owns: the check of the arguments and the choice of the device. Never: projections, RoPE, caches.
//
// T tokens of all documents one after the other, Hq query heads, Hkv key and value heads (query
// head h reads kv head h / (Hq / Hkv)), D channels a head. fp32 or bf16, one type for all; any
// strides with a contiguous last dim (views into a fused [T, (Hq + 2 Hkv) D] buffer are fine).
// Memory: one block of scores per thread, never [T, T]. The method is FlashAttention's (Dao 2022):
// online softmax, scores recomputed in the backward. Wrong shapes: InternalError; a device without
// kernels: ConfigError.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// What a token sees of its document.
struct Sight {
  // So many at most, itself and those before it (Mistral's sliding window); 0: all before it.
  int64_t window = 0;
  bool is_causal = true;  // false: those after it, too, and as many of them
};

struct AttentionOptions {
  // Document d is tokens offsets[d] .. offsets[d + 1]; starts at 0, ends at T.
  std::span<const int64_t> offsets;
  double scale;  // of q.k
  Sight sight = {};
};

struct AttentionResult {
  at::Tensor out;  // [T, Hq, D], contiguous, type of q
  at::Tensor lse;  // fp32 [Hq, T], log of the softmax's denominator
};

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);

struct AttentionGradients {
  at::Tensor dq;  // [T, Hq, D]
  at::Tensor dk;  // [T, Hkv, D]
  at::Tensor dv;  // [T, Hkv, D]
};

// Gradients as new contiguous tensors. `forward`: what attention() gave for the same arguments.
AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const AttentionResult& forward,
                                      const AttentionOptions& options);

// The same, into tensors of the caller: any strides with a contiguous last dim, such as views into
// the gradient of a fused projection. They must not overlap the inputs.
void attention_backward_into(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionResult& forward,
                             const AttentionOptions& options, const AttentionGradients& gradients);

// Generation: q [Tq, Hq, D] are the last Tq positions of one document whose keys and values are k
// and v [Tk, Hkv, D], Tq <= Tk. The result is of the queries alone.
AttentionResult attention_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, int64_t window = 0);

}  // namespace strata::ops
