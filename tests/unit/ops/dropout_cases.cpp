#include "op_cases.h"

#include <ATen/ATen.h>

#include "op_arguments.h"
#include "strata/ops/dropout.h"

namespace strata::ops {
namespace {

// The mask is what the op makes of ones; its statistics have tests of their own.
OpCase dropout_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor keys = make.integers(1 << 30, size.rows);
  const at::Tensor ones = at::ones_like(x, at::kFloat);
  const at::Tensor kept = ops::dropout(ones, 0.3, keys, 5).cpu() != 0;
  const at::Tensor dx = dropout_backward(dy, 0.3, keys, 5);
  at::Tensor sum = x.clone(), sum_of_another_type = x.to(at::kFloat, false, /*copy=*/true);
  add_dropout_backward_(sum, dy, 0.3, keys, 5);
  add_dropout_backward_(sum_of_another_type, dy, 0.3, keys, 5);
  const at::Tensor expected = wide(dy) * kept / 0.7;
  return {.comparisons = {{"y", ops::dropout(x, 0.3, keys, 5), wide(x) * kept / 0.7},
                          {"dx", dx, expected},
                          {"dx added", sum, wide(x) + expected},
                          {"dx added to fp32", sum_of_another_type, wide(x) + expected}},
          .slopes = {{"x", x, dx,
                      [=](const at::Tensor& v) {
                        return weighted(ops::dropout(v, 0.3, keys, 5), dy);
                      }}},
          .run = [=] { ops::dropout(x, 0.3, keys, 5); },
          .bytes = 2 * bytes_of({x})};
}

}  // namespace

std::vector<OpRow> dropout_ops() {
  return {{"dropout", kBoth, kPlainSizes, {2048, 512}, dropout_case}};
}

}  // namespace strata::ops
