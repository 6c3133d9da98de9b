// Attention with a bias, or with vectors of positions, from libtorch's operations on padded
// documents: on GPUs. Owns: those steps. Never: checks;
// biased_attention.cpp has those.
//
// Memory: the scores of as many documents, or of as many queries of one, as fit, in fp32, a few
// times (ops/attention/attention_chunks.h). Scores are fp32 whatever the type of q; every sum has
// one order.
#pragma once

#include "strata/ops/attention/biased_attention.h"

namespace strata::ops::dense {

// Scores that exist at once: 256 MiB; a quarter of it where products with vectors of positions
// stand beside them, twice as many.
inline constexpr int64_t kMostScores = int64_t{64} << 20;
constexpr int64_t most_scores(bool has_positions) {
  return has_positions ? kMostScores / 4 : kMostScores;
}

// As the functions of the same names in biased_attention.h, on any device that holds data.
AttentionResult biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, const BiasedAttentionOptions& options,
                                 int64_t most_scores = kMostScores);
BiasedAttentionGradients biased_attention_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& bias, const AttentionResult& forward, const BiasedAttentionOptions& options,
    bool wants_bias, int64_t most_scores = kMostScores);

// For the memory plan: takes and gives back what the backward pass, or the forward pass, does on a
// GPU.
void imagine_scores(const at::Tensor& q, const at::Tensor& k, const BiasedAttentionOptions& options,
                    bool is_backward);

}  // namespace strata::ops::dense
