// Dropout whose mask is a pure function of (key, token key, channel): recomputation, resuming and
// another number of ranks draw the same mask without saved state (invariant I6).
// Owns: that function. Never: generator state.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// x [T, H], fp32 or bf16, contiguous; 0 <= p <= 1, otherwise ConfigError; `token_keys` int64 [T].
// Elements are zeroed with probability p, the others multiplied by 1 / (1 - p). p = 0 returns x
// itself. `key` should mix seed, step, micro-step and layer.
at::Tensor dropout(const at::Tensor& x, double p, const at::Tensor& token_keys, uint64_t key);

// Applies the same mask and factor to dy.
at::Tensor dropout_backward(const at::Tensor& dy, double p, const at::Tensor& token_keys,
                            uint64_t key);
// sum += the same, in one pass over both where they have one type; `sum` [T, H] has any.
void add_dropout_backward_(at::Tensor sum, const at::Tensor& dy, double p,
                           const at::Tensor& token_keys, uint64_t key);

}  // namespace strata::ops
