// The gate of gpt-oss' experts: with g = min(gate, limit) and u = up cut to [-limit, limit],
// (u + 1) * g * sigmoid(alpha * g). Owns: the check of the arguments and the choice of the device.
// Never: the matrix products around, gates without a limit (swiglu.h).
//
// fp32 or bf16; gate and up of a channel lie side by side. Wrong shapes or types: InternalError.
// Source: transformers GptOssExperts.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

// `gate_up`: contiguous [T, 2I]; returns [T, I].
at::Tensor clamped_swiglu(const at::Tensor& gate_up, const ClampedGate& gate);

// Turns `gate_up` into its gradient. `dy`: contiguous [T, I]. A clamped value has none, one at the
// limit has, as in libtorch's clamp.
void clamped_swiglu_backward_(const at::Tensor& gate_up, const at::Tensor& dy,
                              const ClampedGate& gate);

}  // namespace strata::ops
