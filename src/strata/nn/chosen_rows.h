// Rows of a tensor by their numbers, as libtorch's index_select(), whose backward makes one tensor
// more where there is no data (it takes those of device meta for a subclass's), so that a memory
// plan would place what follows elsewhere than the run does.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::nn {

// x [N, ...], rows int64 [R] in [0, N) -> [R, ...]. Differentiable in x.
at::Tensor chosen_rows(const at::Tensor& x, const at::Tensor& rows);

}  // namespace strata::nn
