// Matrices in MXFP4: checks and choice of the device. The kernels are in mxfp4_cpu.cpp and
// mxfp4_cuda.cu.
#include "strata/ops/quant/mxfp4.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/current_stream.h"
#include "strata/ops/quant/kernels.h"

namespace strata::ops::quant {

void decode_mxfp4_into(const at::Tensor& out, const QuantizedMatrix& matrix, bool through_half) {
  constexpr const char* kOp = "decode_mxfp4";
  check_device_or_plan(kOp, out);
  check_shape(kOp, "out", out, {matrix.columns, matrix.rows});
  check_contiguous(kOp, "out", out);
  check_type(kOp, "bytes", matrix.bytes, at::kByte);
  check_shape(kOp, "bytes", matrix.bytes, {matrix.layout().total});
  check_contiguous(kOp, "bytes", matrix.bytes);
  if (matrix.format != kMxfp4Format || matrix.columns % kMxfp4Block != 0) {
    throw InternalError(
        "decode_mxfp4: found a matrix [{}, {}] as {}, expected whole blocks of mxfp4", matrix.rows,
        matrix.columns, describe(matrix.format));
  }
  const Element type = element_of(kOp, "out", out);
  if (out.is_meta()) return;
  const ActivityTimer timer(Activity::kMatrixProducts);
  const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
  const uint8_t* scales = bytes + matrix.layout().scales;
  if constexpr (kHasCuda) {
    if (out.is_cuda()) {
      return cuda::decode_mxfp4({bytes, scales, matrix.columns, matrix.rows, through_half},
                                /*count=*/1, type, out.mutable_data_ptr(),
                                ops::cuda::current_stream(out));
    }
  }
  cpu::decode_mxfp4({bytes, scales, matrix.columns, matrix.rows},
                    {0, matrix.columns, 0, matrix.rows},
                    {type, out.mutable_data_ptr(), matrix.rows, through_half});
}

}  // namespace strata::ops::quant
