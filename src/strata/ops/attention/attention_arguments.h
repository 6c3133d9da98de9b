// What every attention demands of its arguments. Never: documents, biases, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/cpu_kernels.h"

namespace strata::ops {

// [tokens, heads, channels] with contiguous channels and the type of `like`; of a tensor on meta a
// view without memory. InternalError naming `op` and `argument`.
HeadsView heads_view(const char* op, const char* argument, const at::Tensor& tensor,
                     const at::Tensor& like);

// The same channels everywhere, and a multiple of k's heads in q. InternalError naming `op`.
void check_heads(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace strata::ops
