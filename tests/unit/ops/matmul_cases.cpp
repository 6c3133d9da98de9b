#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::ops {
namespace {

// y = x w^T [rows, columns] over `third`, and both gradients.
OpCase matmul_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.third});
  const at::Tensor w = make.random({size.columns, size.third});
  const at::Tensor dy = make.random({size.rows, size.columns});
  const at::Tensor x64 = leaf(x), w64 = leaf(w);
  const at::Tensor y64 = at::mm(x64, w64.t());
  torch::autograd::backward({y64}, {wide(dy)});
  const at::Tensor dx = ops::matmul(dy, w), dw = at::empty_like(w, at::kFloat);
  matmul_into(dw, dy, x, {.a = true}, 0);
  const at::Tensor y = at::empty(dy.sizes(), dy.options());
  return {.comparisons = {{"y", ops::matmul(x, w, {.b = true}), y64},
                          {"dx", dx, x64.grad()},
                          {"dw", dw, w64.grad()}},
          .slopes =
              {{"x", x, dx,
                [=](const at::Tensor& v) { return weighted(ops::matmul(v, w, {.b = true}), dy); }},
               {"w", w, dw,
                [=](const at::Tensor& v) { return weighted(ops::matmul(x, v, {.b = true}), dy); }}},
          .run = [=] { matmul_into(y, x, w, {.b = true}, 0); },
          .bytes = bytes_of({x, w, y}),
          .flops = 2.0 * static_cast<double>(size.rows * size.columns * size.third)};
}

}  // namespace

std::vector<OpRow> matmul_ops() {
  return {{"matmul",
           kBoth,
           {{2, 40, 7}, {17, 33, 5}, {100, 31, 257}, {300, 65, 513}},
           {2048, 1376, 512},
           matmul_case}};
}

}  // namespace strata::ops
