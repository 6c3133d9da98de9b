#include "strata/ops/quant/device_codes.h"

#include <algorithm>
#include <bit>

#include "strata/base/error.h"
#include "strata/ops/quant/codebook.h"

namespace strata::ops::quant {

Element plain_element(const QuantizedMatrix& matrix) {
  if (matrix.plain == at::kBFloat16) return Element::kBFloat16;
  return matrix.plain == at::kHalf ? Element::kHalf : Element::kFloat;
}

cuda::MatrixCodes codes_on_device(const QuantizedMatrix& matrix, const at::Tensor& scales) {
  constexpr int64_t kMost = (int64_t{1} << 31) - (1 << 11);
  if (matrix.rows > kMost || matrix.columns > kMost) {
    throw InternalError("codes on a GPU: found a matrix [{}, {}], expected sizes of at most {}",
                        matrix.rows, matrix.columns, kMost);
  }
  const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
  const bool has_table = is_of_bitsandbytes(matrix.format) && matrix.format.kind != Kind::kInt8;
  cuda::MatrixCodes codes{
      .is_int8 = matrix.format.kind == Kind::kInt8,
      .is_fp8 = matrix.format.kind == Kind::kFp8,
      .block_shift = std::countr_zero(static_cast<uint64_t>(matrix.format.block)),
      .tile_rows = matrix.format.tile_rows,
      .tile_columns = matrix.format.block,
      .tiles_across = (matrix.columns + matrix.format.block - 1) / matrix.format.block,
      .through = plain_element(matrix),
      .rows = matrix.rows,
      .columns = matrix.columns,
      .codes = bytes,
      .scales = matrix.format.kind == Kind::kInts ? nullptr : scales.const_data_ptr<float>(),
      .ints = int_groups_of(matrix.format, matrix.rows, matrix.columns, bytes),
      .table = {}};
  if (has_table) std::ranges::copy(codes_of(matrix.format.kind), codes.table);
  return codes;
}

}  // namespace strata::ops::quant
