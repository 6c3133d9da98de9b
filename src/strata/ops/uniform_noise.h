// Uniform noise that is a pure function of (key, token key, channel), as dropout's masks are:
// recomputation, resuming and another number of ranks draw the same (invariant I6). Owns: that
// function. Never: generator state.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// x [T, H] += noise in [-magnitude, magnitude); fp32 or bf16, on a GPU also fp16, contiguous.
// `token_keys` int64 [T]; `key` as in ops/dropout.h.
void add_uniform_noise_(at::Tensor x, double magnitude, const at::Tensor& token_keys, uint64_t key);

}  // namespace strata::ops
