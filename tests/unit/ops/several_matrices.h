// Several matrices in codes, as the experts of a mixture rest beside each other.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "fp8_reference.h"
#include "int_reference.h"
#include "mxfp4_reference.h"
#include "strata/ops/quant/mxfp4.h"
#include "strata/ops/quant/quantized_matrices.h"

namespace strata::ops::reference {

struct SeveralCase {
  quant::Format format;
  int64_t rows, columns, count;
};

// Every form that experts rest in.
inline std::vector<SeveralCase> several_cases() {
  using quant::Kind;
  return {{{Kind::kNf4, 64, false}, 24, 40, 3},
          {{Kind::kNf4, 64, true}, 72, 264, 3},
          {{Kind::kFp4, 128, true}, 9, 8, 5},
          {{Kind::kInt8, 64, false}, 13, 264, 4},
          {quant::fp8_format(128, 128), 130, 264, 2},
          {quant::int_format(32, {4, Element::kHalf, true, true}), 24, 64, 3},
          {quant::kMxfp4Format, 70, 96, 3}};
}

inline quant::QuantizedMatrix random_of(const SeveralCase& of) {
  if (of.format == quant::kMxfp4Format) return random_mxfp4(of.rows, of.columns);
  if (of.format.kind == quant::Kind::kFp8)
    return random_fp8({of.rows, of.columns, of.format.tile_rows, of.format.block});
  if (of.format.kind == quant::Kind::kInts) {
    return random_ints({of.rows, of.columns, of.format.block, of.format.ints}, at::kFloat,
                       /*even=*/true);
  }
  return quant::quantize(at::randn({of.rows, of.columns}), of.format);
}

inline quant::QuantizedMatrices random_several(const SeveralCase& of) {
  quant::QuantizedMatrix first = random_of(of);
  const int64_t bytes = first.bytes.numel(), apart = (bytes + 40) / 16 * 16;
  const at::Tensor memory = at::full({of.count * apart}, 255, at::kByte);
  for (int64_t i = 0; i < of.count; ++i) {
    memory.narrow(0, i * apart, bytes).copy_(i == 0 ? first.bytes : random_of(of).bytes);
  }
  first.bytes = memory.narrow(0, 0, bytes);
  return {first, of.count, apart};
}

// [count, rows, columns], transposed of MXFP4.
inline at::Tensor several_one_by_one(const quant::QuantizedMatrices& matrices,
                                     at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < matrices.count; ++i) {
    const quant::QuantizedMatrix matrix = matrices.matrix(i);
    if (matrix.format == quant::kMxfp4Format) {
      all.push_back(at::empty({matrix.columns, matrix.rows}, type));
      quant::decode_mxfp4_into(all.back(), matrix, /*through_half=*/false);
    } else {
      all.push_back(quant::dequantize(matrix, type));
    }
  }
  return at::stack(all);
}

}  // namespace strata::ops::reference
