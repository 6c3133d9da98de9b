#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/layer_norm.h"
#include "strata/ops/rms_norm.h"

namespace strata::ops {
namespace {

// The reference of a kind of norm.
at::Tensor norm_of(RmsNormKind kind, const at::Tensor& x, const at::Tensor& weight) {
  return kind == RmsNormKind::kGemma ? reference::gemma_norm(x, weight, 1e-6)
                                     : reference::rms_norm(x, weight, 1e-6);
}

template <RmsNormKind kKind>
OpCase rms_norm_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.columns});
  const at::Tensor y = norm_of(kKind, leaf(x), leaf(weight));
  return {.comparisons = {{"y", rms_norm(x, weight, 1e-6, kKind).y, y}},
          .run = [=] { rms_norm(x, weight, 1e-6, kKind); },
          .bytes = 2 * bytes_of({x})};
}

template <RmsNormKind kKind>
OpCase rms_norm_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor weight = make.random({size.columns}), residual = make.random(x.sizes());
  const at::Tensor x64 = leaf(x), w64 = leaf(weight);
  torch::autograd::backward({norm_of(kKind, x64, w64)}, {wide(dy)});
  const at::Tensor rstd = rms_norm(x, weight, 1e-6, kKind).rstd;
  const at::Tensor dweight = at::full_like(weight, 7), added = at::full_like(weight, 1);
  const at::Tensor dx = rms_norm_backward(dy, x, weight, rstd, dweight, 0, kKind);
  const at::Tensor both = rms_norm_backward_add(dy, x, weight, rstd, added, 1, residual, kKind);
  const at::Tensor frozen = rms_norm_backward(dy, x, weight, rstd, at::Tensor(), 0, kKind);
  const auto value = [=](const at::Tensor& a, const at::Tensor& b) {
    return weighted(rms_norm(a, b, 1e-6, kKind).y, dy);
  };
  return {.comparisons = {{"dx", dx, x64.grad()},
                          {"dx of a frozen weight", frozen, x64.grad()},
                          {"dx + residual", both, x64.grad() + wide(residual)},
                          {"dweight", dweight, w64.grad()},
                          {"dweight added", added, w64.grad() + 1}},
          .slopes = {{"x", x, dx, [=](const at::Tensor& v) { return value(v, weight); }},
                     {"weight", weight, dweight, [=](const at::Tensor& v) { return value(x, v); }}},
          .run = [=] { rms_norm_backward(dy, x, weight, rstd, dweight, 0, kKind); },
          .bytes = 3 * bytes_of({x})};
}

OpCase layer_norm_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.columns}), bias = make.random({size.columns});
  const at::Tensor y = at::layer_norm(leaf(x), {size.columns}, leaf(weight), leaf(bias), 1e-5);
  return {.comparisons = {{"y", layer_norm(x, weight, bias, 1e-5).y, y}},
          .run = [=] { layer_norm(x, weight, bias, 1e-5); },
          .bytes = 2 * bytes_of({x})};
}

OpCase layer_norm_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor weight = make.random({size.columns}), bias = make.random({size.columns});
  const at::Tensor residual = make.random(x.sizes());
  const at::Tensor x64 = leaf(x), w64 = leaf(weight), b64 = leaf(bias);
  torch::autograd::backward({at::layer_norm(x64, {size.columns}, w64, b64, 1e-5)}, {wide(dy)});
  const LayerNormResult norm = layer_norm(x, weight, bias, 1e-5);
  const auto backward = [=](const LayerNormTarget& of_weight, const LayerNormTarget& of_bias,
                            const at::Tensor& residual_grad) {
    return layer_norm_backward(dy, x, weight, norm.mean, norm.rstd, of_weight, of_bias,
                               residual_grad);
  };
  const at::Tensor dweight = at::full_like(weight, 7), dbias = at::full_like(bias, 7);
  const at::Tensor more_weight = at::full_like(weight, 1), more_bias = at::full_like(bias, 1);
  const at::Tensor dx = backward({dweight, 0}, {dbias, 0}, at::Tensor());
  const at::Tensor both = backward({more_weight, 1}, {more_bias, 1}, residual);
  const at::Tensor frozen = backward({}, {}, at::Tensor());
  const auto value = [=](const at::Tensor& a, const at::Tensor& w, const at::Tensor& b) {
    return weighted(layer_norm(a, w, b, 1e-5).y, dy);
  };
  return {
      .comparisons = {{"dx", dx, x64.grad()},
                      {"dx of a frozen norm", frozen, x64.grad()},
                      {"dx + residual", both, x64.grad() + wide(residual)},
                      {"dweight", dweight, w64.grad()},
                      {"dweight added", more_weight, w64.grad() + 1},
                      {"dbias", dbias, b64.grad()},
                      {"dbias added", more_bias, b64.grad() + 1}},
      .slopes = {{"x", x, dx, [=](const at::Tensor& v) { return value(v, weight, bias); }},
                 {"weight", weight, dweight,
                  [=](const at::Tensor& v) { return value(x, v, bias); }},
                 {"bias", bias, dbias, [=](const at::Tensor& v) { return value(x, weight, v); }}},
      .run =
          [=] {
            backward({dweight, 0}, {dbias, 0}, at::Tensor());
          },
      .bytes = 3 * bytes_of({x})};
}

}  // namespace

std::vector<OpRow> norm_ops() {
  // One channel has no gradient through a norm; odd sizes leave a rest behind every wide register.
  const std::vector<OpSize> sizes = {{1, 64}, {3, 7}, {65, 24}, {200, 129}, {33, 512}};
  const OpSize timed{2048, 512};
  return {{"rms_norm", kBoth, sizes, timed, rms_norm_case<RmsNormKind::kLlama>},
          {"rms_norm_backward", kBoth, sizes, timed, rms_norm_backward_case<RmsNormKind::kLlama>},
          {"gemma_norm", kBoth, sizes, timed, rms_norm_case<RmsNormKind::kGemma>},
          {"gemma_norm_backward", kBoth, sizes, timed, rms_norm_backward_case<RmsNormKind::kGemma>},
          {"olmo_norm", kBoth, sizes, timed, rms_norm_case<RmsNormKind::kOlmo>},
          {"olmo_norm_backward", kBoth, sizes, timed, rms_norm_backward_case<RmsNormKind::kOlmo>},
          {"layer_norm", kBoth, sizes, timed, layer_norm_case},
          {"layer_norm_backward", kBoth, sizes, timed, layer_norm_backward_case}};
}

}  // namespace strata::ops
