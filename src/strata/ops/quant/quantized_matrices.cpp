#include "strata/ops/quant/quantized_matrices.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/base/error.h"
#include "strata/ops/check.h"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/current_stream.h"
#include "strata/ops/quant/device_codes.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/map_on_device.h"
#include "strata/ops/quant/mxfp4.h"

namespace strata::ops::quant {
namespace {

constexpr const char* kOp = "decode";

bool are_in_mxfp4(const QuantizedMatrices& matrices) {
  return matrices.first.format == kMxfp4Format;
}

bool rounds_through_half(const QuantizedMatrix& matrix) { return matrix.plain == at::kHalf; }

void check(const at::Tensor& out, const QuantizedMatrices& matrices) {
  const QuantizedMatrix& first = matrices.first;
  const bool is_transposed = are_in_mxfp4(matrices);
  check_device_or_plan(kOp, out);
  check_contiguous(kOp, "out", out);
  check_shape(kOp, "out", out,
              {matrices.count, is_transposed ? first.columns : first.rows,
               is_transposed ? first.rows : first.columns});
  check_type(kOp, "bytes", first.bytes, at::kByte);
  check_shape(kOp, "bytes", first.bytes, {first.layout().total});
  check_contiguous(kOp, "bytes", first.bytes);
  check_same_device(kOp, "bytes", first.bytes, out);
  const int64_t numel = first.rows * first.columns;
  if (matrices.count > 1 && (numel % 8 != 0 || matrices.bytes_apart % 16 != 0)) {
    throw InternalError(
        "decode: found {} matrices of {} elements, {} bytes apart, expected multiples of 8 and 16; "
        "report this as a bug",
        matrices.count, numel, matrices.bytes_apart);
  }
}

void decode_on_device(const at::Tensor& out, const QuantizedMatrices& matrices) {
  const QuantizedMatrix& first = matrices.first;
  const Element type = element_of(kOp, "out", out);
  const ops::cuda::Stream stream = ops::cuda::current_stream(out);
  if (are_in_mxfp4(matrices)) {
    const auto* bytes = first.bytes.const_data_ptr<uint8_t>();
    return cuda::decode_mxfp4({.codes = bytes,
                               .scales = bytes + first.layout().scales,
                               .rows = first.columns,
                               .columns = first.rows,
                               .through_half = rounds_through_half(first),
                               .bytes_apart = matrices.bytes_apart},
                              matrices.count, type, out.mutable_data_ptr(), stream);
  }
  const at::Tensor scales = resolved_scales(matrices);
  cuda::MatrixCodes codes = codes_on_device(first, scales);
  constexpr int64_t kScaleBytes = sizeof(float);
  codes.bytes_apart = matrices.bytes_apart;
  codes.scales_apart =
      first.format.nested ? scales.numel() / matrices.count : matrices.bytes_apart / kScaleBytes;
  cuda::dequantize(codes, matrices.count, type, out.mutable_data_ptr(), stream);
}

}  // namespace

QuantizedMatrix QuantizedMatrices::matrix(int64_t index) const {
  QuantizedMatrix result = first;
  result.bytes = first.bytes.as_strided({first.bytes.numel()}, {1},
                                        first.bytes.storage_offset() + index * bytes_apart);
  return result;
}

QuantizedMatrices QuantizedMatrices::range(int64_t index, int64_t number) const {
  return {matrix(index), number, bytes_apart};
}

void decode_into(const at::Tensor& out, const QuantizedMatrices& matrices) {
  check(out, matrices);
  const ActivityTimer timer(Activity::kMatrixProducts);
  if (out.is_meta()) {
    (void)resolved_scales(matrices);
    return;
  }
  if constexpr (kHasCuda) {
    if (out.is_cuda()) return decode_on_device(out, matrices);
  }
  for (int64_t i = 0; i < matrices.count; ++i) {
    const QuantizedMatrix matrix = matrices.matrix(i);
    const at::Tensor part = out.select(0, i);
    if (are_in_mxfp4(matrices)) {
      decode_mxfp4_into(part, matrix, rounds_through_half(matrix));
    } else {
      part.copy_(dequantize(matrix, out.scalar_type()));
    }
  }
}

at::Tensor resolved_scales(const QuantizedMatrices& matrices) {
  const QuantizedMatrix& first = matrices.first;
  if (!first.format.nested) return first.scales();
  const int64_t of_matrix = first.scales().numel();
  at::Tensor scales =
      at::empty({matrices.count * of_matrix}, first.bytes.options().dtype(at::kFloat));
  if (scales.is_meta()) return scales;
  if constexpr (kHasCuda) {
    if (scales.is_cuda()) {
      cuda::dequantize_dynamic({.map = map_on_device(/*is_signed=*/true, scales.device()),
                                .block = kNestedBlock,
                                .codes = first.scales().const_data_ptr<uint8_t>(),
                                .scales = first.nested().const_data_ptr<float>(),
                                .mean = first.mean().const_data_ptr<float>(),
                                .bytes_apart = matrices.bytes_apart},
                               of_matrix, matrices.count, scales.mutable_data_ptr<float>(),
                               ops::cuda::current_stream(scales));
      return scales;
    }
  }
  for (int64_t i = 0; i < matrices.count; ++i) {
    const QuantizedMatrix matrix = matrices.matrix(i);
    const at::Tensor part = scales.narrow(0, i * of_matrix, of_matrix);
    cpu::dequantize_dynamic(
        /*is_signed=*/true, kNestedBlock, matrix.scales().const_data_ptr<uint8_t>(),
        matrix.nested().const_data_ptr<float>(), of_matrix, part.mutable_data_ptr<float>());
    part.add_(matrix.mean());
  }
  return scales;
}

}  // namespace strata::ops::quant
