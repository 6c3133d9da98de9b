// Large products: checks and choice of the method. The CPU kernel is in matmul_cpu.cpp.
#include "strata/ops/matmul/matmul.h"

#include <algorithm>
#include <atomic>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/cpu_arithmetic.h"
#include "strata/libtorch/plain_view.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "matmul";

// Below this many rows or columns packing the other factor costs more than it saves: of fp32, and
// of bf16 that is converted.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewColumns = 4, kFewConvertedColumns = 32;

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

// Whether bf16 of any shape is multiplied by our own kernels, as everywhere where runs compute in
// it, also where it is converted (Intel's processors without the matrix unit): libtorch's products
// are plain loops without oneDNN, and with it would keep compiled code for each number of tokens
// that they ever saw.
bool multiplies_own_bf16(const at::Tensor& x) {
  return is_bf16(x) && !is_for_cuda(x) &&
         (bf16_products() != Bf16Products::kConverted || cpu::has_pair_product());
}

CpuProducts faster_products() {
  return at::hasMKL() && is_intel_cpu() ? CpuProducts::kMkl : CpuProducts::kOwn;
}

std::atomic<CpuProducts>& products_to_use() {
  static std::atomic<CpuProducts> products{faster_products()};
  return products;
}

bool use_own_kernel(const at::Tensor& c, const at::Tensor& a) {
  if (is_for_cuda(c)) return false;
  if (multiplies_own_bf16(a)) return true;  // also few rows, which libtorch multiplies faster
  // libtorch rounds what it sums to bf16 before it is anybody's fp32.
  if (is_bf16(a) && c.scalar_type() == at::kFloat) return true;
  // A processor with bf16 arithmetic for which this build has no kernels.
  if (is_bf16(a) && cpu_has_bf16_arithmetic() && !cpu::has_pair_product()) return false;
  if (a.scalar_type() == at::kFloat && c.scalar_type() == at::kFloat &&
      cpu_products() == CpuProducts::kMkl) {
    return false;
  }
  return c.size(0) >= kFewRows && c.size(1) >= (is_bf16(a) ? kFewConvertedColumns : kFewColumns);
}

// MKL makes half as much a second of a tall, narrow c = a^T b (the gradient of a low-rank B) as of
// its transpose.
constexpr int64_t kNarrow = 64;
bool is_faster_transposed(const at::Tensor& c, Transposes transposes) {
  return !is_for_cuda(c) && c.scalar_type() == at::kFloat && transposes.a && !transposes.b &&
         c.size(1) <= kNarrow && c.size(0) > 2 * c.size(1);
}

// What such a product takes beside c for a moment.
void plan_with_aten(const at::Tensor& c, const at::Tensor& a, Transposes transposes) {
  const bool is_copied = c.scalar_type() != a.scalar_type() || is_faster_transposed(c, transposes);
  if (is_copied && !is_for_cuda(c)) (void)at::empty({c.size(1), c.size(0)}, a.options());
}

void multiply_with_aten(at::Tensor c, const at::Tensor& a, const at::Tensor& b,
                        Transposes transposes, float beta) {
  const at::Tensor left = transposes.a ? plain_transposed(a) : a;
  const at::Tensor right = transposes.b ? plain_transposed(b) : b;
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
  } else if (is_faster_transposed(c, transposes)) {
    const at::Tensor product = at::mm(plain_transposed(right), plain_transposed(left)).t();
    beta == 0 ? c.copy_(product) : c.add_(product);
  } else if (beta == 0) {
    at::mm_out(c, left, right);
  } else {
    c.addmm_(left, right, /*beta=*/1, /*alpha=*/1);
  }
}

// What MKL keeps beside c: of a range of terms the packed columns of b and rows of a, each thread
// its own; on one thread few rows are multiplied where b lies. Found by measurement of the one
// inside libtorch 2.13 with AVX-512; with several threads large products are within a tenth of it.
int64_t mkl_scratch_bytes(int64_t rows, int64_t columns, int64_t inner) {
  constexpr int64_t kRange = 384, kRows = 384, kColumns = 9984;
  const int64_t terms = inner <= kRange ? inner : inner < 2 * kRange ? (inner + 1) / 2 : kRange;
  const int64_t threads = at::get_num_threads();
  const bool packs_columns = rows > kRows || threads > 1;
  const int64_t lines =
      std::min(rows, kRows * threads) + (packs_columns ? std::min(columns, kColumns * threads) : 0);
  return terms * lines * static_cast<int64_t>(sizeof(float));
}

bool has_contiguous_rows(const at::Tensor& x) { return x.size(1) <= 1 || x.stride(1) == 1; }

// One token by a weight [columns, inner]: what a decoder's step is made of.
bool is_row_by_columns(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                       Transposes transposes) {
  return c.is_cpu() && is_bf16(a) && is_bf16(c) && c.size(0) == 1 && !transposes.a &&
         transposes.b && has_contiguous_rows(a) && has_contiguous_rows(b);
}

// A factor as the kernel takes it. A transposed view is read as what it views; `copy` keeps alive
// what had to be copied.
cpu::MatmulFactor factor_of(const at::Tensor& x, bool transposed, at::Tensor& copy) {
  if (has_contiguous_rows(x)) return {x.const_data_ptr(), x.stride(0), transposed};
  const bool has_contiguous_columns = x.size(0) <= 1 || x.stride(0) == 1;
  if (has_contiguous_columns) return {x.const_data_ptr(), x.stride(1), !transposed};
  copy = x.contiguous();
  return {copy.const_data_ptr(), copy.stride(0), transposed};
}

}  // namespace

CpuProducts cpu_products() { return products_to_use().load(std::memory_order_relaxed); }
void choose_cpu_products(CpuProducts products) { products_to_use() = products; }

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
  if (rows == 0 || columns == 0) return;
  if (c.is_meta()) {
    if (!use_own_kernel(c, a)) plan_with_aten(c, a, transposes);
    return;
  }
  const ActivityTimer timer(Activity::kMatrixProducts);
  const bool by_columns = is_row_by_columns(c, a, b, transposes);
  if (!by_columns && !use_own_kernel(c, a)) return multiply_with_aten(c, a, b, transposes, beta);
  at::Tensor a_copy, b_copy;
  const cpu::MatmulArguments arguments{.rows = rows,
                                       .columns = columns,
                                       .inner = inner,
                                       .type = element_of(kOp, "a", a),
                                       .a = factor_of(a, transposes.a, a_copy),
                                       .b = factor_of(b, transposes.b, b_copy),
                                       .c_type = element_of(kOp, "c", c),
                                       .c = {c.mutable_data_ptr(), c.stride(0)},
                                       .add = beta != 0};
  by_columns ? cpu::multiply_row_by_columns(arguments) : cpu::matmul(arguments);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, Transposes transposes) {
  at::Tensor c =
      at::empty({a.size(transposes.a ? 1 : 0), b.size(transposes.b ? 0 : 1)}, a.options());
  matmul_into(c, a, b, transposes, 0);
  return c;
}

at::Tensor thin_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat && a.is_cpu()) return ops::matmul(a, b);
  if (!multiplies_own_bf16(a)) {
    const ActivityTimer timer(Activity::kMatrixProducts);
    return at::mm(a, b);
  }
  const bool is_few = a.size(0) < kFewRows;
  at::Tensor c =
      at::empty({a.size(0), b.size(1)}, is_few ? a.options().dtype(at::kFloat) : a.options());
  matmul_into(c, a, b, {}, /*beta=*/0);
  return c.to(a.scalar_type());
}

void add_thin_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, double factor) {
  if (multiplies_own_bf16(a)) {
    return matmul_into(sum, factor == 1.0 ? a : a * factor, b, {}, /*beta=*/1);
  }
  const ActivityTimer timer(Activity::kMatrixProducts);
  if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b, /*beta=*/1, /*alpha=*/factor);
  } else {
    sum.copy_(at::addmm(sum.to(a.scalar_type()), a, b, /*beta=*/1, /*alpha=*/factor));
  }
}

void thin_product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double factor) {
  const ActivityTimer timer(Activity::kMatrixProducts);
  at::addmm_out(out, out, a, b, /*beta=*/0, /*alpha=*/factor);
}

int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, at::ScalarType type,
                             at::ScalarType c_type) {
  const bool is_mkls = type == at::kFloat && c_type == at::kFloat;
  if (is_mkls && cpu_products() == CpuProducts::kMkl)
    return mkl_scratch_bytes(rows, columns, inner);
  const auto element = [](at::ScalarType t) {
    return t == at::kBFloat16 ? Element::kBFloat16 : Element::kFloat;
  };
  return cpu::matmul_scratch_bytes(rows, columns, inner, element(type), element(c_type));
}

}  // namespace strata::ops
