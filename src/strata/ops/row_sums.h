// The sum of the rows that belong to a token, as a mixture's experts give them back. Owns: the
// check of the arguments and the choice of the device. Never: which rows those are
// (nn/experts/expert_rows.h).
//
// fp32 or bf16, on GPUs also fp16; summed in fp32 in the order of `place`, rounded once. Wrong
// shapes or types: InternalError; a row that is not there is not looked for.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

// y[t] = sum over j of weights[t, j] * x[place[j * T + t]], without the factors where `weights` is
// undefined. `x`: contiguous [S, columns]; `place`: contiguous int64 [k * T]; `weights`: contiguous
// fp32 [T, k]. Returns [T, columns] in x's type.
at::Tensor row_sums(const at::Tensor& x, const at::Tensor& place, int64_t num_tokens,
                    const at::Tensor& weights);

}  // namespace strata::ops
