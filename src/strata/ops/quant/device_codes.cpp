#include "strata/ops/quant/device_codes.h"

#include <algorithm>
#include <bit>

#include "strata/ops/quant/codebook.h"

namespace strata::ops::quant {

cuda::MatrixCodes codes_on_device(const QuantizedMatrix& matrix, const at::Tensor& scales) {
  cuda::MatrixCodes codes{
      .is_int8 = matrix.format.kind == Kind::kInt8,
      .block_shift = std::countr_zero(static_cast<uint64_t>(matrix.format.block)),
      .rows = matrix.rows,
      .columns = matrix.columns,
      .codes = matrix.bytes.const_data_ptr<uint8_t>(),
      .scales = scales.const_data_ptr<float>(),
      .table = {}};
  if (!codes.is_int8) std::ranges::copy(codes_of(matrix.format.kind), codes.table);
  return codes;
}

}  // namespace strata::ops::quant
