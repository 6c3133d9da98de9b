// Quantised matrices: checks, choice of the product. Never: a kernel.
#include "strata/ops/quant/quantized.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/parallel_for.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/device_codes.h"
#include "strata/ops/quant/few_rows.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/mxfp4_rows.h"
#include "strata/ops/quant/quantized_matrices.h"
#include "strata/ops/quant/range_quantizer.h"

namespace strata::ops::quant {
namespace {

constexpr const char* kOp = "quantize";

at::Tensor part(const QuantizedMatrix& m, int64_t offset, int64_t bytes, at::ScalarType type) {
  return m.bytes.narrow(0, offset, bytes).view(type);
}

at::ScalarType scalar_type_of(Element type) {
  if (type == Element::kBFloat16) return at::kBFloat16;
  return type == Element::kHalf ? at::kHalf : at::kFloat;
}

// What is in MXFP4, fp8 or whole numbers was quantised elsewhere; mxfp4.h decodes the first.
void require_bitsandbytes(const Format& format) {
  if (is_of_bitsandbytes(format)) return;
  throw InternalError("{}: found {}, expected a format of bitsandbytes; report this as a bug", kOp,
                      name_of(format.kind));
}

void check(const QuantizedMatrix& matrix) {
  const bool is_of_files = matrix.format.kind == Kind::kFp8 || matrix.format.kind == Kind::kInts;
  if (!is_of_files) require_bitsandbytes(matrix.format);
  check_device_or_plan(kOp, matrix.bytes);
  check_type(kOp, "bytes", matrix.bytes, at::kByte);
  check_shape(kOp, "bytes", matrix.bytes, {matrix.layout().total});
  check_contiguous(kOp, "bytes", matrix.bytes);
}

cpu::MatrixCodes codes_of(const QuantizedMatrix& matrix, const at::Tensor& scales) {
  const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
  const bool is_of_ints = matrix.format.kind == Kind::kInts;
  return {matrix.format.kind,
          matrix.format.block,
          matrix.columns,
          bytes,
          is_of_ints ? nullptr : scales.const_data_ptr<float>(),
          matrix.format.tile_rows,
          is_of_bitsandbytes(matrix.format) ? Element::kFloat : plain_element(matrix),
          int_groups_of(matrix.format, matrix.rows, matrix.columns, bytes)};
}

// The grain of a parallel loop over rows.
int64_t rows_of_grain(int64_t columns) {
  return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, columns));
}

// For few rows of a decoder: the weight is read as codes and decoded in registers.
bool multiplies_codes_on_device(const at::Tensor& c, const at::Tensor& a, const QuantizedMatrix& b,
                                bool transposed, at::ScalarType compute) {
  return kHasCuda && a.is_cuda() && transposed && a.scalar_type() == compute &&
         c.scalar_type() == compute && a.size(0) <= cuda::kMostRowsOfSmallProduct &&
         b.columns % 8 == 0 && a.stride(1) == 1 && c.stride(1) == 1;
}

void multiply_on_device(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, float beta) {
  const at::Tensor scales = resolved_scales({b});
  cuda::multiply_few_rows(codes_on_device(b, scales),
                          {.type = element_of("matmul", "a", a),
                           .x = a.const_data_ptr(),
                           .x_stride = a.stride(0),
                           .y = c.mutable_data_ptr(),
                           .y_stride = c.stride(0),
                           .rows = a.size(0),
                           .add = beta != 0},
                          ops::cuda::current_stream(a));
}

// A CPU multiplies no fp16. Its products have fp16's precision instead: so do both factors and the
// result, whose sums are fp32.
void multiply_in_half(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                      float beta) {
  const at::Tensor left = a.to(at::kHalf).to(at::kFloat);
  const at::Tensor right = dequantize(b, at::kHalf).to(at::kFloat);
  const at::Tensor product = ops::matmul(left, right, {.b = transposed}).to(at::kHalf);
  beta == 0 ? c.copy_(product) : c.add_(product);
}

// The product is rounded to `compute` before it is added, unless that is the type of c.
void finish_few_rows(const at::Tensor& c, const at::Tensor& sums, float beta,
                     at::ScalarType compute) {
  const at::Tensor product = compute == c.scalar_type() ? sums : sums.to(compute);
  beta == 0 ? c.copy_(product) : c.add_(product);
}

// On a CPU. Both factors have the precision of `compute`, sums are fp32.
void multiply_few_rows(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                       float beta, at::ScalarType compute) {
  const at::Tensor x = a.to(compute).to(at::kFloat).contiguous();
  const at::Tensor sums = at::empty(c.sizes(), x.options());
  const at::Tensor scales = resolved_scales({b});
  if (c.is_meta()) {
    // An expert for which a plan expects few rows may get many.
    if (compute == at::kBFloat16) (void)dequantize(b, compute);
    return;
  }
  cpu::multiply_few_rows(codes_of(b, scales), {.x = x.const_data_ptr<float>(),
                                               .y = sums.mutable_data_ptr<float>(),
                                               .rows = c.size(0),
                                               .weight_rows = b.rows,
                                               .back = !transposed,
                                               .rounds_to_bf16 = compute == at::kBFloat16});
  finish_few_rows(c, sums, beta, compute);
}

// c [M, w.rows] = a W^T, as codes of W lie.
void multiply_few_rows_of_mxfp4(const at::Tensor& c, const at::Tensor& a, const QuantizedMatrix& w,
                                float beta, at::ScalarType compute) {
  check_type("matmul", "bytes", w.bytes, at::kByte);
  check_shape("matmul", "bytes", w.bytes, {w.layout().total});
  check_contiguous("matmul", "bytes", w.bytes);
  const at::Tensor x = a.to(compute).to(at::kFloat).contiguous();
  const at::Tensor sums = at::empty(c.sizes(), x.options());
  const auto* bytes = w.bytes.const_data_ptr<uint8_t>();
  cpu::multiply_few_rows(cpu::Mxfp4Codes{bytes, bytes + w.layout().scales, w.columns, w.rows},
                         {.x = x.const_data_ptr<float>(),
                          .y = sums.mutable_data_ptr<float>(),
                          .rows = c.size(0),
                          .weight_rows = w.rows,
                          .back = false,
                          .rounds_to_bf16 = compute == at::kBFloat16},
                         /*through_half=*/w.plain == at::kHalf);
  finish_few_rows(c, sums, beta, compute);
}

// Rows at a time, so that 8-bit ranges stay within one.
void decode_rows(const cpu::MatrixCodes& codes, int64_t begin, int64_t end, Element type,
                 void* out) {
  std::vector<float> scratch(type == Element::kFloat ? 0 : static_cast<size_t>(codes.columns));
  for (int64_t row = begin; row < end; ++row) {
    void* to = at_index(type, out, row * codes.columns);
    float* decoded = begin_row(type, to, scratch.data());
    cpu::dequantize(codes, row * codes.columns, codes.columns, decoded);
    finish_row(type, decoded, codes.columns, to);
  }
}

// Blocks of rows are decoded for MKL's products one after the other: the whole weight is never
// there. (MKL packs each once more: few megabytes, of which no plan knows.)
void multiply_decoded_blocks(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b,
                             const at::Tensor& scales, bool transposed, float beta) {
  constexpr int64_t kBytesAtOnce = 4 << 20, kFewestRows = 128;
  const int64_t fitting =
      kBytesAtOnce / (std::max<int64_t>(b.columns, 1) * static_cast<int64_t>(sizeof(float)));
  const int64_t at_once = std::min(std::max(fitting, kFewestRows), b.rows);
  const at::Tensor decoded = at::empty({at_once, b.columns}, c.options());
  if (c.is_meta()) return;
  const cpu::MatrixCodes codes = codes_of(b, scales);
  auto* const values = decoded.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < b.rows; begin += at_once) {
    const int64_t count = std::min(at_once, b.rows - begin);
    at::parallel_for(0, count, rows_of_grain(b.columns), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        cpu::dequantize(codes, (begin + row) * b.columns, b.columns, values + row * b.columns);
      }
    });
    const at::Tensor dense = decoded.narrow(0, 0, count);
    if (transposed) {
      ops::matmul_into(c.narrow(1, begin, count), a, dense, {.b = true}, beta);
    } else {
      ops::matmul_into(c, a.narrow(1, begin, count), dense, {}, begin == 0 ? beta : 1);
    }
  }
}

}  // namespace

at::Tensor QuantizedMatrix::codes() const { return part(*this, 0, layout().num_codes, at::kByte); }

at::Tensor QuantizedMatrix::scales() const {
  const Layout l = layout();
  if (format.nested) return part(*this, l.scales, l.num_scales, at::kByte);
  if (format.kind == Kind::kInts) {
    const Element type = format.ints.scale_type;
    return part(*this, l.scales, l.num_scales * size_bytes(type), scalar_type_of(type));
  }
  return part(*this, l.scales, 4 * l.num_scales, at::kFloat);
}

at::Tensor QuantizedMatrix::nested() const {
  return part(*this, layout().nested, 4 * layout().num_nested, at::kFloat);
}

at::Tensor QuantizedMatrix::mean() const {
  return part(*this, layout().mean, format.nested ? 4 : 0, at::kFloat);
}

at::Tensor QuantizedMatrix::zeros() const {
  const Layout l = layout();
  return part(*this, l.zeros, format.ints.has_zeros ? l.num_scales : 0, at::kChar);
}

at::Tensor QuantizedMatrix::order() const {
  return part(*this, layout().order, format.ints.has_order ? 4 * columns : 0, at::kInt);
}

QuantizedMatrix quantize(const at::Tensor& x, const Format& format) {
  check_device(kOp, x);
  require_bitsandbytes(format);
  check_contiguous(kOp, "x", x);
  if (x.dim() != 2) throw InternalError("quantize: found {} dims, expected a matrix", x.dim());
  if (!x.is_cpu()) {
    throw InternalError("quantize: found a matrix on {}, expected it in host memory",
                        x.device().str());
  }
  QuantizedMatrix result{format, x.size(0), x.size(1), {}};
  result.bytes = at::empty({result.layout().total}, at::TensorOptions().dtype(at::kByte));
  RangeQuantizer quantizer(format, result.rows, result.columns, result.bytes);
  quantizer.quantize(x.view({-1}), /*begin=*/0, result.bytes.mutable_data_ptr<uint8_t>());
  quantizer.finish();
  return result;
}

at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType type) {
  check(matrix);
  const ActivityTimer timer(Activity::kMatrixProducts);
  at::Tensor dense =
      at::empty({matrix.rows, matrix.columns},
                matrix.bytes.options().dtype(
                    type == at::kBFloat16 || is_for_cuda(matrix.bytes) ? type : at::kFloat));
  const at::Tensor scales = resolved_scales({matrix});
  if (dense.is_meta()) return dense.to(type);
  if constexpr (kHasCuda) {
    if (dense.is_cuda()) {
      cuda::dequantize(codes_on_device(matrix, scales), /*count=*/1,
                       element_of(kOp, "result", dense), dense.mutable_data_ptr(),
                       ops::cuda::current_stream(dense));
      return dense;
    }
  }
  const cpu::MatrixCodes codes = codes_of(matrix, scales);
  const Element element = element_of(kOp, "result", dense);
  at::parallel_for(0, matrix.rows, rows_of_grain(matrix.columns), [&](int64_t begin, int64_t end) {
    decode_rows(codes, begin, end, element, dense.mutable_data_ptr());
  });
  return dense.to(type);
}

namespace {

// By libtorch, of the weight as a whole.
void multiply_decoded(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                      float beta, at::ScalarType compute) {
  const at::Tensor dense = dequantize(b, compute);
  if (a.scalar_type() == compute) return ops::matmul_into(c, a, dense, {.b = transposed}, beta);
  const at::Tensor product = ops::matmul(a.to(compute), dense, {.b = transposed});
  beta == 0 ? c.copy_(product) : c.add_(product);
}

// In fp32, decoded panel by panel, or for MKL block by block.
void multiply_panels(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                     float beta) {
  const at::Tensor scales = resolved_scales({b});
  const bool are_few = c.size(0) <= ops::cpu::kRowsOfOneBlock;
  if (!are_few && ops::cpu_products() == ops::CpuProducts::kMkl && a.scalar_type() == at::kFloat &&
      c.scalar_type() == at::kFloat) {
    return multiply_decoded_blocks(c, a, b, scales, transposed, beta);
  }
  if (c.is_meta()) return;
  const cpu::MatrixCodes codes = codes_of(b, scales);
  ops::cpu::matmul({.rows = c.size(0),
                    .columns = c.size(1),
                    .inner = transposed ? b.columns : b.rows,
                    .type = element_of("matmul", "a", a),
                    .a = {a.const_data_ptr(), a.stride(0), false},
                    .b = {nullptr, b.columns, transposed},
                    .c_type = element_of("matmul", "c", c),
                    .c = {c.mutable_data_ptr(), c.stride(0)},
                    .add = beta != 0,
                    .b_codes = &codes});
}

}  // namespace

void matmul_into(at::Tensor c, const at::Tensor& a, const QuantizedMatrix& b, bool transposed,
                 float beta, at::ScalarType compute) {
  check(b);
  const ActivityTimer timer(Activity::kMatrixProducts);
  if constexpr (kHasCuda) {
    if (multiplies_codes_on_device(c, a, b, transposed, compute)) {
      return multiply_on_device(c, a, b, beta);
    }
  }
  if (compute == at::kHalf && !is_for_cuda(a)) return multiply_in_half(c, a, b, transposed, beta);
  // A GPU's products are libtorch's, of the decoded weight.
  const bool rounds = compute == at::kBFloat16 || is_for_cuda(a);
  const int64_t inner = transposed ? b.columns : b.rows;
  check_shape("matmul", "a", a, {c.size(0), inner});
  check_shape("matmul", "c", c, {a.size(0), transposed ? b.rows : b.columns});
  // What files hold in fp8 or whole numbers trains as its copy in 16 bits does, to the bit: its
  // products are those of plain weights.
  const bool is_own = is_of_bitsandbytes(b.format);
  if (is_own && !is_for_cuda(a) && c.size(0) <= cpu::kMostFewRows) {
    return multiply_few_rows(c, a, b, transposed, beta, compute);
  }
  // Few rows or columns: packing panels costs more than it saves; the products are libtorch's.
  constexpr int64_t kFewRows = 16, kFewColumns = 32;
  if (rounds || c.size(0) < kFewRows || c.size(1) < kFewColumns) {
    return multiply_decoded(c, a, b, transposed, beta, compute);
  }
  check_last_dim_contiguous("matmul", "a", a);
  check_last_dim_contiguous("matmul", "c", c);
  multiply_panels(c, a, b, transposed, beta);
}

bool multiply_few_rows_into(at::Tensor y, const at::Tensor& x, const QuantizedMatrix& w, float beta,
                            at::ScalarType compute) {
  if (!x.is_cpu() || x.size(0) > cpu::kMostFewRows || compute == at::kHalf) return false;
  check_shape("matmul", "x", x, {y.size(0), w.columns});
  check_shape("matmul", "y", y, {x.size(0), w.rows});
  const ActivityTimer timer(Activity::kMatrixProducts);
  if (w.format == kMxfp4Format) {
    multiply_few_rows_of_mxfp4(y, x, w, beta, compute);
  } else {
    check(w);
    multiply_few_rows(y, x, w, /*transposed=*/true, beta, compute);
  }
  return true;
}

}  // namespace strata::ops::quant
