// Quantised matrices as tensors: quantise, dequantise, multiply.
// Owns: the checks. Never: parameters, files, how scales are quantised (range_quantizer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/format.h"

namespace strata::ops::quant {

// A matrix [rows, columns] in `format`. `bytes`: uint8 [stored_bytes(...)], laid out by
// layout_of().
struct QuantizedMatrix {
  Format format;
  int64_t rows, columns;
  at::Tensor bytes;
  // fp8 and whole numbers: the type that values are rounded to before anything is made of them, as
  // those of plain weights in that type are.
  at::ScalarType plain = at::kFloat;

  Layout layout() const { return layout_of(format, rows, columns); }
  // Views of parts of the bytes: codes uint8, scales fp32 (uint8 with nested, of whole numbers in
  // their type), second-level scales fp32, mean fp32 [1], zeros int8, order int32.
  at::Tensor codes() const;
  at::Tensor scales() const;
  at::Tensor nested() const;
  at::Tensor mean() const;
  at::Tensor zeros() const;
  at::Tensor order() const;
};

// Quantises x [rows, columns] (fp32, bf16, fp16 or fp64, contiguous, on the CPU) as bitsandbytes
// does on one thread of a CPU, bit for bit. 8 bits: the values are rounded to fp16 first, as there.
// Memory: the result and a few MiB.
QuantizedMatrix quantize(const at::Tensor& x, const Format& format);

// [rows, columns] in `type`: code * scale in fp32, rounded once, to `plain` before.
at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType type);

// c [M, N] = a op(b) + beta * c with beta 0 or 1, where op(b) is b transposed for `transposed`:
// then b is [N, K], else [K, N]. a and c of one type, fp32 or bf16. Where the product is computed
// in fp32 the weight is decoded into the packed panels and never exists as a whole; nor does one of
// bitsandbytes' formats for up to 16 rows on a CPU, in fp32 and bf16.
// `compute`: the type of the product: bf16 and fp16 round a and the weight to it, and the result,
// which comes back in the type of c. On a CPU fp16 is a precision alone: sums are fp32, of values
// that were rounded to it; what exceeds its range becomes infinite.
void matmul_into(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                 float beta, at::ScalarType compute);

}  // namespace strata::ops::quant
