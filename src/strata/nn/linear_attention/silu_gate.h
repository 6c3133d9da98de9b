// y silu(z), as a state space ends that has no norm (Falcon-H1), as one autograd function. Owns:
// saving both, and nothing else. Never: gates of MLPs, which lie in memory of their own
// (nn/gated_mlp.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::nn {

// y, z [T, channels] -> [T, channels] in the type of y, in fp32 and rounded once. Memory: keeps
// both.
at::Tensor silu_gate(const at::Tensor& y, const at::Tensor& z);

}  // namespace strata::nn
