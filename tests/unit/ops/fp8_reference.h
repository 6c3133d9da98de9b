// Matrices in fp8 and what they stand for, by libtorch's own type of 8 bits.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::reference {

struct Fp8Case {
  int64_t rows, columns, tile_rows, tile_columns;
};

// Tiles that divide and that do not, of rows, of the whole; sizes that vectors do not divide.
inline const std::vector<Fp8Case> kFp8Cases{
    {3, 7, 2, 3},     {1, 1, 1, 1},   {9, 131, 4, 16},    {70, 72, 128, 128},  {40, 264, 1, 264},
    {48, 64, 48, 64}, {5, 64, 2, 12}, {200, 136, 64, 24}, {13, 2080, 128, 128}};

// Random codes, without NaN.
inline quant::QuantizedMatrix random_fp8(const Fp8Case& of, at::ScalarType plain = at::kFloat) {
  const quant::Format format = quant::fp8_format(of.tile_rows, of.tile_columns);
  quant::QuantizedMatrix matrix{format, of.rows, of.columns, {}, plain};
  matrix.bytes = at::zeros({matrix.layout().total}, at::dtype(at::kByte));
  const at::Tensor codes = at::randint(254, {of.rows * of.columns}, at::dtype(at::kByte));
  matrix.codes().copy_(at::where(codes == 127, at::zeros_like(codes), codes));
  matrix.scales().copy_(at::rand({matrix.layout().num_scales}) * 0.01 + 1e-4);
  return matrix;
}

// [rows, columns] in fp32, rounded to `plain` on the way.
inline at::Tensor fp8_by_hand(const quant::QuantizedMatrix& matrix) {
  const int64_t height = matrix.format.tile_rows, width = matrix.format.block;
  const at::Tensor codes =
      matrix.codes().view(at::kFloat8_e4m3fn).to(at::kFloat).view({matrix.rows, matrix.columns});
  const int64_t across = (matrix.columns + width - 1) / width;
  const at::Tensor scales = matrix.scales()
                                .view({-1, across})
                                .repeat_interleave(height, 0)
                                .repeat_interleave(width, 1)
                                .narrow(0, 0, matrix.rows)
                                .narrow(1, 0, matrix.columns);
  return (codes * scales).to(matrix.plain).to(at::kFloat);
}

}  // namespace strata::ops::reference
