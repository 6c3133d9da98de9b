// Causal attention through cuDNN's kernels, which are faster than FlashAttention on Hopper and
// later chips. They build a plan for every shape they meet, so they serve documents of one length
// alone, as packed and padded rows have it; other documents would cost a plan a micro-batch. Owns:
// that choice and the mapping onto libtorch's arguments. Never: checks; attention.cpp has those.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/ops/attention/attention.h"

namespace strata::ops::cuda {

// The length of all documents where cuDNN is to attend to them. Never with a window, nor where it
// is not causal, never with full determinism, nor where STRATA_ATTENTION=flash is in the
// environment, nor after cuDNN has refused a shape.
std::optional<int64_t> length_for_cudnn(const at::Tensor& q, std::span<const int64_t> offsets,
                                        Sight sight);

// What came of the first shape that cuDNN has refused in this process; empty while there is none.
std::string cudnn_refusal();

// As the functions of ops/attention/attention.h over documents of `length` tokens. Nothing where
// cuDNN refuses the shape: the caller has another way, also back from a forward pass of this one,
// because out and lse are the same.
std::optional<AttentionResult> cudnn_attention(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, int64_t length, double scale);
std::optional<AttentionGradients> cudnn_attention_backward(const at::Tensor& dout,
                                                           const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const AttentionResult& forward,
                                                           int64_t length, double scale);

}  // namespace strata::ops::cuda
