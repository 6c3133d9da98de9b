// Large products: checks and choice of the method. The CPU kernel is in matmul_cpu.cpp.
#include "strata/ops/matmul.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "matmul";

// Below this many rows or columns packing the other factor costs more than it saves.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewColumns = 32;

bool multiplies_bf16() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool use_own_kernel(const at::Tensor& c, const at::Tensor& a) {
  if (!c.is_cpu()) return false;
  if (a.scalar_type() == at::kBFloat16 && multiplies_bf16()) return c.scalar_type() == at::kFloat;
  return c.size(0) >= kFewRows && c.size(1) >= kFewColumns;
}

void multiply_with_aten(at::Tensor c, const at::Tensor& a, const at::Tensor& b,
                        Transposes transposes, float beta) {
  const at::Tensor left = transposes.a ? a.t() : a;
  const at::Tensor right = transposes.b ? b.t() : b;
  if (c.is_cuda() && c.scalar_type() == at::kFloat && a.scalar_type() != at::kFloat) {
    // cuBLAS sums and writes fp32 by itself.
    if (beta == 0) {
      at::mm_out(c, left, right, at::kFloat);
    } else {
      at::addmm_out(c, c, left, right, at::kFloat);
    }
  } else if (c.scalar_type() != a.scalar_type()) {
    const at::Tensor product = at::mm(left, right);
    beta == 0 ? c.copy_(product) : c.add_(product);
  } else if (beta == 0) {
    at::mm_out(c, left, right);
  } else {
    c.addmm_(left, right, /*beta=*/1, /*alpha=*/1);
  }
}

bool has_contiguous_rows(const at::Tensor& x) { return x.size(1) <= 1 || x.stride(1) == 1; }

// A factor as the kernel takes it. A transposed view is read as what it views; `copy` keeps alive
// what had to be copied.
cpu::MatmulFactor factor_of(const at::Tensor& x, bool transposed, at::Tensor& copy) {
  if (has_contiguous_rows(x)) return {x.const_data_ptr(), x.stride(0), transposed};
  if (has_contiguous_rows(x.t())) return {x.const_data_ptr(), x.stride(1), !transposed};
  copy = x.contiguous();
  return {copy.const_data_ptr(), copy.stride(0), transposed};
}

}  // namespace

void matmul_into(at::Tensor c, const at::Tensor& a, const at::Tensor& b, Transposes transposes,
                 float beta) {
  if (a.dim() != 2 || b.dim() != 2 ||
      a.size(transposes.a ? 0 : 1) != b.size(transposes.b ? 1 : 0)) {
    throw InternalError("matmul: found factors of shape [{}]{} and [{}]{}, expected matching sizes",
                        fmt::join(a.sizes(), ", "), transposes.a ? " transposed" : "",
                        fmt::join(b.sizes(), ", "), transposes.b ? " transposed" : "");
  }
  const int64_t rows = a.size(transposes.a ? 1 : 0);
  const int64_t columns = b.size(transposes.b ? 0 : 1);
  const int64_t inner = a.size(transposes.a ? 0 : 1);
  check_shape(kOp, "c", c, {rows, columns});
  check_type(kOp, "b", b, a.scalar_type());
  if (beta != 0 && beta != 1) throw InternalError("matmul: found beta {}, expected 0 or 1", beta);
  check_last_dim_contiguous(kOp, "c", c);
  if (rows == 0 || columns == 0 || c.is_meta()) return;
  const ActivityTimer timer(Activity::kMatrixProducts);
  if (!use_own_kernel(c, a)) return multiply_with_aten(c, a, b, transposes, beta);
  at::Tensor a_copy, b_copy;
  cpu::matmul({.rows = rows,
               .columns = columns,
               .inner = inner,
               .type = element_of(kOp, "a", a),
               .a = factor_of(a, transposes.a, a_copy),
               .b = factor_of(b, transposes.b, b_copy),
               .c_type = element_of(kOp, "c", c),
               .c = {c.mutable_data_ptr(), c.stride(0)},
               .add = beta != 0});
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, Transposes transposes) {
  at::Tensor c =
      at::empty({a.size(transposes.a ? 1 : 0), b.size(transposes.b ? 0 : 1)}, a.options());
  matmul_into(c, a, b, transposes, 0);
  return c;
}

int64_t matmul_scratch_bytes(int64_t columns, int64_t inner) {
  return cpu::matmul_scratch_bytes(columns, inner);
}

}  // namespace strata::ops
