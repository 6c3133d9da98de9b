// Matrices in MXFP4 and what they stand for, by the definition of OCP's Microscaling Formats.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::reference {

// [rows, columns] of random codes; the first block has a scale of 0, the second one of 255.
inline quant::QuantizedMatrix random_mxfp4(int64_t rows, int64_t columns) {
  using quant::kMxfp4Format;
  const int64_t bytes = quant::stored_bytes(kMxfp4Format, rows, columns);
  quant::QuantizedMatrix matrix{kMxfp4Format, rows, columns,
                                at::randint(256, {bytes}, at::dtype(at::kByte))};
  const int64_t blocks = rows * columns / quant::kMxfp4Block;
  const at::Tensor scales = matrix.bytes.narrow(0, matrix.layout().scales, blocks);
  scales.copy_(at::randint(110, 140, {blocks}));
  scales[0] = 0;
  if (blocks > 1) scales[1] = 255;
  return matrix;
}

// Its transpose [columns, rows] in fp64: infinity and NaN of a scale of 255 are those of fp32.
inline at::Tensor decoded_by_hand(const quant::QuantizedMatrix& matrix) {
  constexpr std::array<double, 8> kMagnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
  const uint8_t* scales = bytes + matrix.layout().scales;
  const at::Tensor dense = at::empty({matrix.columns, matrix.rows}, at::kDouble);
  auto element = dense.accessor<double, 2>();
  for (int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
    const int code = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
    const int scale = scales[i / quant::kMxfp4Block];
    const double power = scale == 255 ? INFINITY : std::ldexp(1.0, scale - 127);
    const double value = kMagnitudes[static_cast<size_t>(code & 7)] * power;
    element[i % matrix.columns][i / matrix.columns] = code < 8 ? value : -value;
  }
  return dense;
}

}  // namespace strata::ops::reference
