// Attention through libtorch's kernels for NVIDIA GPUs: for 16-bit types cuDNN's where all
// documents are equally long (cudnn_attention_cuda.h), else FlashAttention (documents by their
// offsets, grouped heads without repeating them); for fp32 the memory-efficient kernel. Owns: the
// mapping onto their arguments. Never: checks; attention.cpp has those.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "strata/ops/attention/attention.h"

namespace strata::ops::cuda {

// As the functions of the same names in attention.h; the window is 0 where no document is longer.
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);
AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const AttentionResult& forward,
                                      const AttentionOptions& options);
AttentionResult attention_with_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, int64_t window);

}  // namespace strata::ops::cuda
