// The gated activation between the products of an MLP as an autograd function. Owns: saving gate
// and up, and nothing else. Never: the kernel (ops/swiglu.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/remakable.h"

namespace strata::nn {

// silu(gate) * up, or gelu(gate) * up; all [T, intermediate]. Backward reuses the memory of gate
// and up.
Remakable swiglu(const at::Tensor& gate, const at::Tensor& up);
Remakable geglu(const at::Tensor& gate, const at::Tensor& up);

// The same of both as the halves of one tensor [T, 2 * intermediate], a fused projection's output.
Remakable swiglu_of_halves(const at::Tensor& gate_up);

}  // namespace strata::nn
