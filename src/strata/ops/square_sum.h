// Sum of squares of a flat buffer, for the global gradient norm.
// Owns: an order of summation that does not depend on the number of threads. Never: collectives.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// `flat` fp32 or bf16, contiguous. Blocks of fixed size are summed in double and then one after
// the other. Empty: 0.
double square_sum(const at::Tensor& flat);

// The sum over several, one after the other. On a GPU the host waits once for all of them, and
// those that follow one another in one storage are read as one.
double square_sum(const std::vector<at::Tensor>& flats);

}  // namespace strata::ops
