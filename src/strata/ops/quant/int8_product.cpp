#include "strata/ops/quant/int8_product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "strata/base/activity_timer.h"
#include "strata/base/error.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/int8_rows.h"
#include "strata/ops/quant/kernels.h"

namespace strata::ops::quant {
namespace {

// 1 / 127^2 and 1 / 127 as bitsandbytes writes them.
constexpr double kPerProduct = 6.200124e-05, kPerCode = 0.007874015718698502;

struct RowCodes {
  at::Tensor codes;    // int8 [T, K]
  at::Tensor scales;   // fp32 [T]
  at::Tensor columns;  // int64, those with outliers; undefined: none
};

RowCodes encode_rows(const at::Tensor& x, double threshold) {
  RowCodes result;
  at::Tensor half = x.to(at::kHalf);
  if (threshold > 0) {
    const at::Tensor outliers = half.abs().ge(threshold);
    const at::Tensor columns = at::argwhere(outliers.any(0)).view({-1});
    if (columns.numel() > 0) {
      result.columns = columns;
      half = half.masked_fill(outliers, 0);
    }
  }
  result.scales = half.abs().amax({1}).to(at::kFloat);
  const at::Tensor factors = result.scales.reciprocal().mul_(127.0).unsqueeze(1);
  // A row of zeros has no scale: its codes are zeros.
  result.codes = half.to(at::kFloat).mul_(factors).round_().nan_to_num_(0).to(at::kChar);
  if (result.columns.defined() && x.size(0) > 1) result.codes.index_fill_(1, result.columns, 0);
  return result;
}

// cuBLAS wants more than 16 rows, and multiples of 8 everywhere.
int64_t missing(int64_t size) { return (8 - size % 8) % 8; }
int64_t missing_rows(int64_t size) { return std::max<int64_t>(size + missing(size), 24) - size; }

at::Tensor multiply_padded(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = missing_rows(a.size(0));
  const int64_t inner = missing(a.size(1)), columns = missing(b.size(0));
  const at::Tensor left = at::constant_pad_nd(a, {0, inner, 0, rows});
  const at::Tensor right = inner + columns > 0 ? at::constant_pad_nd(b, {0, inner, 0, columns}) : b;
  return at::_int_mm(left, right.t()).narrow(0, 0, a.size(0)).narrow(1, 0, b.size(0));
}

// So many products of bytes sum to 2^24 at most: whole numbers that fp32 holds, in any order.
constexpr int64_t kTerms = 1024;
constexpr int64_t kColumns = 1024;  // of b, widened at a time

// What whole numbers of 8 bits are multiplied as. bf16 holds them, and its products are summed in
// fp32, where this processor multiplies pairs of them.
at::ScalarType type_of_products() {
  return bf16_products() == Bf16Products::kConverted ? at::kFloat : at::kBFloat16;
}

// The tensors of encode_rows() without outliers, one after the other, where there are no data.
at::Tensor imagine_codes(const at::Tensor& x, double threshold) {
  const auto like = [&](at::ScalarType type) {
    return at::empty(x.sizes(), x.options().dtype(type));
  };
  const at::Tensor half = x.scalar_type() == at::kHalf ? x : like(at::kHalf);
  if (threshold > 0) {
    const at::Tensor sizes = like(at::kHalf);
    const at::Tensor outliers = like(at::kBool);
  }
  { const at::Tensor sizes = like(at::kHalf); }
  const at::Tensor scaled = like(at::kFloat);
  return like(at::kChar);
}

// Takes the temporaries of code_product().
at::Tensor imagine_code_product(const at::Tensor& a, int64_t columns) {
  const auto of = [&](int64_t rows, int64_t width, at::ScalarType type) {
    return at::empty({rows, width}, a.options().dtype(type));
  };
  if (is_for_cuda(a)) {
    const int64_t rows = a.size(0) + missing_rows(a.size(0));
    const int64_t inner = a.size(1) + missing(a.size(1)), width = columns + missing(columns);
    const at::Tensor left = of(rows, inner, at::kChar);
    const bool is_padded = inner > a.size(1) || width > columns;
    const at::Tensor right = is_padded ? of(width, inner, at::kChar) : at::Tensor();
    return of(rows, width, at::kInt);
  }
  at::Tensor y = of(a.size(0), columns, at::kInt);
  if (a.size(0) <= cpu::kMostFewRows) return y;
  const int64_t terms = std::min(kTerms, a.size(1)), width = std::min(kColumns, columns);
  const at::ScalarType type = type_of_products();
  const at::Tensor left = of(a.size(0), terms, type);
  const at::Tensor right = of(width, terms, type);
  const at::Tensor part = of(a.size(0), width, at::kFloat);
  const at::Tensor whole = of(a.size(0), width, at::kInt);
  return y;
}

// Takes the temporaries of int8_product().
at::Tensor imagine_product(const at::Tensor& x, int64_t columns, double threshold) {
  const auto like = [&](at::ScalarType type) {
    return at::empty({x.size(0), columns}, x.options().dtype(type));
  };
  const at::Tensor codes = imagine_codes(x, threshold);
  at::Tensor whole = imagine_code_product(codes, columns);
  const at::Tensor y = like(at::kFloat);
  whole.reset();
  { const at::Tensor scales = like(at::kFloat); }
  return x.scalar_type() == at::kFloat ? y : like(x.scalar_type());
}

}  // namespace

// libtorch's product of bytes is not taken: oneDNN keeps compiled code and tens of megabytes for
// the shapes that it ever saw, of which no plan can know, and where there is no VNNI it cuts sums
// of two terms off at 16 bits.
at::Tensor code_product_by(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  at::Tensor y = at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  for (int64_t k = 0; k < a.size(1); k += kTerms) {
    const int64_t terms = std::min(kTerms, a.size(1) - k);
    const at::Tensor left = a.narrow(1, k, terms).to(type);
    for (int64_t j = 0; j < b.size(0); j += kColumns) {
      const int64_t columns = std::min(kColumns, b.size(0) - j);
      const at::Tensor right = b.narrow(0, j, columns).narrow(1, k, terms).to(type);
      at::Tensor part = at::empty({a.size(0), columns}, a.options().dtype(at::kFloat));
      ops::matmul_into(part, left, right, {.b = true}, /*beta=*/0);
      y.narrow(1, j, columns).add_(part.to(at::kInt));
    }
  }
  return y;
}

int64_t code_product_scratch_bytes(int64_t rows, int64_t columns, int64_t inner) {
  if (rows <= cpu::kMostFewRows) return 0;
  return ops::matmul_scratch_bytes(rows, std::min(kColumns, columns), std::min(kTerms, inner),
                                   type_of_products(), at::kFloat);
}

at::Tensor code_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda()) return multiply_padded(a, b);
  if (a.size(0) <= cpu::kMostFewRows && a.is_contiguous() && b.is_contiguous()) {
    at::Tensor y = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
    cpu::multiply_byte_rows({.a = a.const_data_ptr<int8_t>(),
                             .b = b.const_data_ptr<int8_t>(),
                             .y = y.mutable_data_ptr<int32_t>(),
                             .rows = a.size(0),
                             .columns = b.size(0),
                             .inner = a.size(1)});
    return y;
  }
  return code_product_by(a, b, type_of_products());
}

at::Tensor int8_product(const at::Tensor& x, const QuantizedMatrix& weight, double threshold) {
  if (weight.format.kind != Kind::kInt8) {
    throw InternalError("int8_product: found {}, expected int8; report this as a bug",
                        describe(weight.format));
  }
  // Without data (the memory plan) no outlier is known.
  if (x.is_meta()) return imagine_product(x, weight.rows, threshold);
  const ActivityTimer timer(Activity::kMatrixProducts);
  const at::Tensor codes = weight.codes().view(at::kChar).view({weight.rows, weight.columns});
  const at::Tensor scales = weight.scales();
  const RowCodes rows = encode_rows(x, threshold);
  at::Tensor y = code_product(rows.codes, codes).to(at::kFloat);
  y.mul_(rows.scales.unsqueeze(1) * scales.unsqueeze(0)).mul_(kPerProduct);
  y = y.to(x.scalar_type());
  if (!rows.columns.defined()) return y;
  const at::Tensor part = codes.index_select(1, rows.columns)
                              .to(at::kFloat)
                              .mul_(scales.unsqueeze(1))
                              .mul_(kPerCode)
                              .to(x.scalar_type());
  ops::matmul_into(y, x.index_select(1, rows.columns), part, {.b = true}, /*beta=*/1);
  return y;
}

}  // namespace strata::ops::quant
