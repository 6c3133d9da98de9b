// The gates of MLPs (Shazeer 2020): silu(gate) * up (Llama's) or gelu(gate) * up (Gemma's, GELU by
// its approximation with tanh), and their gradients.
// Owns: the check of the arguments and the choice of the device. Never: the matrix products around.
//
// All tensors [T, I], one type (fp32 or bf16, on GPUs also fp16); rows may be strided (views into
// one fused [T, 2I] buffer), the last dim is contiguous. Wrong shapes or types: InternalError.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

// Contiguous [T, I].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up);

// Writes the gradients of gate and up into preallocated tensors, which may be gate and up.
void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                     at::Tensor& dgate, at::Tensor& dup);
void geglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                    at::Tensor& dgate, at::Tensor& dup);

// The same for weights[t] * swiglu(gate, up) in row t: writes the gradients of gate and up and
// returns that of the weights, fp32 [T]. `weights`: contiguous fp32 [T].
at::Tensor weighted_swiglu_backward(const at::Tensor& dy, const at::Tensor& weights,
                                    const at::Tensor& gate, const at::Tensor& up, at::Tensor& dgate,
                                    at::Tensor& dup);

}  // namespace strata::ops
