// The generation of a GPU. Owns: that question. Never: tensors, headers of CUDA.
#pragma once

namespace strata::ops::cuda {

// The first number of its compute capability: 8 for A100, 9 for H100; 0 where it cannot be asked.
int compute_capability_major(int device);

}  // namespace strata::ops::cuda
