// Matrices of codes: decoded, and in products with few rows, which GPUs have kernels of their own
// for. Expected is what the tables and scales of a format say, in double.
#include <ATen/ATen.h>

#include "fp8_reference.h"
#include "int_reference.h"
#include "op_arguments.h"
#include "op_cases.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

using quant::Kind;
using quant::QuantizedMatrix;

// On the CPU, where quantising happens.
QuantizedMatrix random_codes(Kind kind, int64_t rows, int64_t columns) {
  if (kind == Kind::kFp8) return reference::random_fp8({rows, columns, 128, 128});
  if (kind == Kind::kInts) {
    return reference::random_ints({rows, columns, 128, {4, Element::kHalf, true, false}},
                                  at::kFloat, /*even=*/true);
  }
  return quant::quantize(at::randn({rows, columns}), {kind, 64, false});
}

at::Tensor decoded_by_formula(const QuantizedMatrix& m) {
  if (m.format.kind == Kind::kFp8) return wide(reference::fp8_by_hand(m));
  if (m.format.kind == Kind::kInts) return wide(reference::ints_by_hand(m));
  const at::Tensor scales = m.scales().to(at::kDouble);
  if (m.format.kind == Kind::kInt8) {
    const at::Tensor codes = m.codes().view(at::kChar).to(at::kDouble);
    return codes.view({m.rows, m.columns}) * scales.view({m.rows, 1}) / 127;
  }
  const auto codebook = quant::codes_of(m.format.kind);
  const at::Tensor table =
      at::tensor(at::ArrayRef<float>(codebook.data(), codebook.size())).to(at::kDouble);
  const at::Tensor bytes = m.codes().to(at::kLong);
  const at::Tensor codes = at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view({-1});
  const at::Tensor values = table.index_select(0, codes.narrow(0, 0, m.rows * m.columns));
  const at::Tensor factors = scales.repeat_interleave(m.format.block);
  return (values * factors.narrow(0, 0, values.numel())).view({m.rows, m.columns});
}

QuantizedMatrix moved(QuantizedMatrix matrix, at::Device device) {
  matrix.bytes = matrix.bytes.to(device);
  return matrix;
}

template <Kind kKind>
OpCase decode_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const QuantizedMatrix codes = random_codes(kKind, size.rows, size.columns);
  const QuantizedMatrix there = moved(codes, device);
  const at::Tensor found = quant::dequantize(there, type);
  return {.comparisons = {{"w", found, decoded_by_formula(codes)}},
          .run = [=] { quant::dequantize(there, type); },
          .bytes = bytes_of({there.bytes, found})};
}

// Third: the rows of x.
template <Kind kKind>
OpCase few_rows_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const QuantizedMatrix codes = random_codes(kKind, size.rows, size.columns);
  const QuantizedMatrix there = moved(codes, device);
  const at::Tensor x = make.random({size.third, size.columns});
  const at::Tensor y = at::empty({size.third, size.rows}, x.options());
  const auto run = [=] { quant::matmul_into(y, x, there, /*transposed=*/true, 0, type); };
  run();
  const at::Tensor weight = wide(decoded_by_formula(codes).to(type));
  return {.comparisons = {{"y", y.clone(), at::mm(wide(x), weight.t())}},
          .run = run,
          .bytes = bytes_of({there.bytes, x, y})};
}

}  // namespace

std::vector<OpRow> quant_ops() {
  const std::vector<OpSize> matrices = {{1, 1},   {3, 7},     {5, 64},   {9, 131},
                                        {65, 24}, {200, 129}, {33, 512}, {13, 2080}};
  const std::vector<OpSize> products = {{1, 1, 1},   {3, 7, 2},     {5, 64, 1},   {9, 131, 8},
                                        {65, 24, 3}, {200, 136, 5}, {33, 512, 1}, {7, 2080, 4}};
  const OpSize matrix{512, 4096}, product{512, 4096, 1};
  return {{"decode_nf4", kBoth, matrices, matrix, decode_case<Kind::kNf4>},
          {"decode_fp4", kBoth, matrices, matrix, decode_case<Kind::kFp4>},
          {"decode_int8", kBoth, matrices, matrix, decode_case<Kind::kInt8>},
          {"decode_fp8", kBoth, matrices, matrix, decode_case<Kind::kFp8>},
          {"decode_ints", kBoth, matrices, matrix, decode_case<Kind::kInts>},
          {"few_rows_nf4", kBoth, products, product, few_rows_case<Kind::kNf4>},
          {"few_rows_int8", kBoth, products, product, few_rows_case<Kind::kInt8>},
          {"few_rows_fp8", kBoth, products, product, few_rows_case<Kind::kFp8>},
          {"few_rows_ints", kBoth, products, product, few_rows_case<Kind::kInts>}};
}

}  // namespace strata::ops
