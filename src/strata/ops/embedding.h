// Rows of a table by token id, and the gradient of the table.
// Owns: the check of the arguments and the choice of the device. Never: parameters.
//
// V rows, H channels, T tokens; fp32 or bf16. An id outside 0 .. V-1: FormatError that names it; on
// a GPU a row of NaN, since nobody waits for it there (data are checked when they are prepared).
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

// `weight` [V, H], `ids` int64 [T]. Returns [T, H] of the type of the weight.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

// Writes (beta 0: clears first) or adds (beta 1) the table's gradient into `dweight` [V, H], fp32
// or bf16; `dy` [T, H]. Each row is summed in fp32 in the order of the tokens, so the result does
// not depend on the number of threads.
void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, at::Tensor dweight,
                        float beta);

}  // namespace strata::ops
