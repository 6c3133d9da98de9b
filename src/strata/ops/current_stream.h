// The stream on which kernels for a GPU run. Owns: nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/libtorch/cuda_build.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops::cuda {

// The current stream of the calling thread on the tensor's device. During backward that is the one
// of the forward pass: autograd sees to it.
Stream current_stream(const at::Tensor& tensor);

}  // namespace strata::ops::cuda
