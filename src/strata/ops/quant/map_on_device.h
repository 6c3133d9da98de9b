// The 8-bit dynamic map where kernels for a GPU read it. Owns: its copies. Never: values
// (codebook.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops::quant {

// fp32 [256] in the memory of `device`, which stays there until the process ends.
const float* map_on_device(bool is_signed, at::Device device);

}  // namespace strata::ops::quant
