// Products of large matrices, for linear layers and their gradients.
// Owns: the choice of the fastest product for device, type and shape. Never: parameters.
//
// On the CPU the product is our own (docs/design/cpu-products.md), except for fp32 on processors of
// MKL's maker, and for few rows or columns of fp32. bf16 is converted block by block and multiplied
// in fp32 where the processor does not multiply it itself. One row of bf16 by a weight (a decoder's
// token) is summed straight from the weight. Other devices: ATen. Our own product does not depend
// on the number of threads.
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

// For the thin factors of low-rank branches: a b, and sum += factor * a b where sum may have
// another type than the product. On the CPU a b is as matmul()'s; the rest is ATen's, but for bf16
// on the CPU, where the factor is applied to a.
at::Tensor thin_product(const at::Tensor& a, const at::Tensor& b);
void add_thin_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, double factor);
// out = factor * a b, of one type, on a GPU: what a large product is then added to.
void thin_product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double factor);

// Who makes large fp32 products on the CPU: our kernel, whose bits depend neither on threads nor on
// the other rows, or MKL, which is a third faster on the processors of its maker.
enum class CpuProducts { kOwn, kMkl };
CpuProducts cpu_products();
// Tests and benchmarks choose; a run takes what is faster.
void choose_cpu_products(CpuProducts products);

// Memory that the product on the CPU takes beside a c [rows, columns] of `c_type` with `inner`
// terms of `type` a sum: packed columns of b, or packed rows of a where these are few; of MKL both.
int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, at::ScalarType type,
                             at::ScalarType c_type);

}  // namespace strata::ops
