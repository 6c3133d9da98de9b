// Matrices of whole numbers in groups and what they stand for, by libtorch's own operations.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "strata/ops/quant/quantized.h"

namespace strata::ops::reference {

struct IntCase {
  int64_t rows, columns, group;
  quant::IntParts parts;
};

// Groups that divide rows and that do not, of whole rows, of one column; columns in an order; rows
// that end inside of bytes and of what vectors take.
inline const std::vector<IntCase> kIntCases{{3, 7, 3, {4, Element::kHalf, true, false}},
                                            {1, 1, 1, {4, Element::kFloat, false, false}},
                                            {9, 131, 16, {4, Element::kBFloat16, true, true}},
                                            {70, 72, 8, {4, Element::kHalf, false, false}},
                                            {40, 264, 264, {4, Element::kBFloat16, false, false}},
                                            {48, 64, 32, {8, Element::kHalf, true, false}},
                                            {5, 65, 12, {8, Element::kFloat, true, true}},
                                            {200, 136, 128, {4, Element::kHalf, true, true}},
                                            {13, 2080, 128, {4, Element::kHalf, true, false}},
                                            {6, 33, 7, {8, Element::kBFloat16, false, false}},
                                            {50, 120, 2, {4, Element::kHalf, true, true}},
                                            {7, 331, 34, {4, Element::kFloat, true, false}},
                                            {5, 333, 64, {4, Element::kBFloat16, true, true}},
                                            {11, 602, 50, {8, Element::kHalf, true, true}}};

// Every code; zeros beyond them, too. Scales from those whose products are subnormal in fp16 to
// those whose products are infinite there, or `even` ones.
inline quant::QuantizedMatrix random_ints(const IntCase& of, at::ScalarType plain = at::kFloat,
                                          bool even = false) {
  const quant::Format format = quant::int_format(of.group, of.parts);
  quant::QuantizedMatrix matrix{format, of.rows, of.columns, {}, plain};
  matrix.bytes = at::randint(256, {matrix.layout().total}, at::dtype(at::kByte));
  const at::Tensor scales = matrix.scales(), zeros = matrix.zeros(), order = matrix.order();
  const at::Tensor exponents = at::randint(-26, 13, scales.sizes()).to(at::kFloat);
  scales.copy_(even ? at::rand(scales.sizes()) * 0.01 + 1e-4
                    : at::randn(scales.sizes()) * exponents.exp2());
  const int64_t most = of.parts.bits == 4 ? 20 : 128;
  zeros.copy_(at::randint(-most, most, zeros.sizes()));
  const int64_t groups = (of.columns + of.group - 1) / of.group;
  order.copy_(at::randint(groups, order.sizes()));
  return matrix;
}

// [rows, columns] in fp32, rounded to the type of the scales and to `plain` on the way.
inline at::Tensor ints_by_hand(const quant::QuantizedMatrix& m) {
  const quant::IntParts& parts = m.format.ints;
  const int64_t groups = (m.columns + m.format.block - 1) / m.format.block;
  const at::Tensor bytes = m.codes().view({m.rows, -1}).to(at::kLong);
  at::Tensor codes = bytes - 128;
  if (parts.bits == 4) {
    codes = at::stack({bytes.remainder(16), bytes.div(16, "floor")}, 2).view({m.rows, -1}) - 8;
  }
  const at::Tensor of_column = parts.has_order ? m.order().to(at::kLong)
                                               : at::arange(m.columns).div(m.format.block, "floor");
  at::Tensor above_zero = codes.narrow(1, 0, m.columns);
  if (parts.has_zeros) {
    above_zero = above_zero - m.zeros().view({-1, groups}).to(at::kLong).index_select(1, of_column);
  }
  const at::Tensor scales = m.scales().view({-1, groups}).to(at::kFloat);
  const at::Tensor values = above_zero.to(at::kFloat) * scales.index_select(1, of_column);
  return values.to(m.scales().scalar_type()).to(m.plain).to(at::kFloat);
}

}  // namespace strata::ops::reference
