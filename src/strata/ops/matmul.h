// Products of large matrices, for linear layers and their gradients.
// Owns: the choice of the fastest product for device, type and shape. Never: parameters.
//
// On the CPU the product in fp32 is our own: the BLAS inside libtorch runs at half speed on
// processors that its maker did not build. bf16 goes to ATen where the processor multiplies bf16
// itself, otherwise it is converted block by block and multiplied in fp32. Other devices and very
// narrow products: ATen. Our own product does not depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::ops {

// Which factors are transposed.
struct Transposes {
  bool a = false;
  bool b = false;
};

// c [M, N] = op(a) op(b) + beta * c with beta 0 or 1; op(a) [M, K], op(b) [K, N]. One type (fp32 or
// bf16) for a and b; c may be fp32 for bf16 factors. Any strides of a and b (what is contiguous in
// neither dim is copied first); the last dim of c is contiguous, its rows may be strided, and it
// overlaps neither a nor b. Wrong shapes: InternalError.
void matmul_into(at::Tensor c, const at::Tensor& a, const at::Tensor& b, Transposes transposes,
                 float beta);

// The same into a new contiguous tensor of the type of a.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, Transposes transposes = {});

// Temporary memory of the CPU kernel for op(a) op(b) with `inner` terms a sum: packed columns of b.
int64_t matmul_scratch_bytes(int64_t columns, int64_t inner);

}  // namespace strata::ops
