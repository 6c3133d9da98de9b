// Several quantised matrices of one form, as the experts of a mixture are, decoded as one operation
// of the device. Owns: the checks. Never: a kernel, products.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {

// Their bytes begin `bytes_apart` from each other in the storage of the first.
struct QuantizedMatrices {
  QuantizedMatrix first;
  int64_t count = 1;
  int64_t bytes_apart = 0;

  QuantizedMatrix matrix(int64_t index) const;
  // `number` of them from `index` on.
  QuantizedMatrices range(int64_t index, int64_t number) const;
};

// What dequantize() makes of each, in the type of `out` [count, rows, columns], contiguous; of
// MXFP4 the transpose, [count, columns, rows], as decode_mxfp4_into(). On a GPU one kernel, or two
// where scales are quantised themselves; requires there for several: rows * columns is a multiple
// of 8, and so is bytes_apart of 16. On a CPU one after the other. Memory: scales that are
// quantised themselves, as fp32.
void decode_into(const at::Tensor& out, const QuantizedMatrices& matrices);

// The scales of each, one after the other, as fp32, but those of whole numbers; of matrices whose
// scales are not quantised those of the first, where they rest. Product and sum stay two roundings,
// as in the reference.
at::Tensor resolved_scales(const QuantizedMatrices& matrices);

}  // namespace strata::ops::quant
