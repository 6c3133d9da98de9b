// Attention through libtorch's kernels for NVIDIA GPUs: FlashAttention for 16-bit types (documents
// by their offsets, grouped heads without repeating them), the memory-efficient kernel for fp32.
// Owns: the mapping onto their arguments. Never: checks; attention.cpp has those.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "strata/ops/attention.h"

namespace strata::ops::cuda {

// As the functions of the same names in attention.h.
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> offsets, double scale);
AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& out, const at::Tensor& lse,
                                      std::span<const int64_t> offsets, double scale);
at::Tensor attention_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                double scale);

}  // namespace strata::ops::cuda
