// Rotary position embedding (Su et al. 2021). By the convention of the Llama checkpoints channel i
// of the first half turns with channel i of the second half; by that of GLM's with its neighbour.
// Owns: the check of the arguments and the choice of the device. Never: the tables of angles.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

// Turns x [T, heads, D] in place (fp32 or bf16; any strides, last dim contiguous, D even) by the
// angles whose cosines and sines are `cos` and `sin`, fp32 [T, D / 2], contiguous.
// `inverse` turns back, which is the backward. Rotates part of the channels when given a narrowed
// view. Wrong shapes: InternalError.
void apply_rope_(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin, bool inverse,
                 RopePairs pairs = RopePairs::kHalves);

}  // namespace strata::ops
