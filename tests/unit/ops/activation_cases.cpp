#include "activation_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/xielu.h"

namespace strata::ops {
namespace {

// An eps that some values lie above, and alphas that do not hide each other.
at::Tensor numbers_on(at::Device device) {
  return at::tensor({0.7f, 1.3f, 0.4f, -0.05f}).to(device);
}

// At 0 and at eps there is no slope: five of the steps, of one hundredth, by which differences are
// taken lie between either and any value.
at::Tensor random_inputs(const Maker& make, const OpSize& size) {
  const at::Tensor x = make.random({size.rows, size.columns}, 2.0);
  const at::Tensor is_near = (x > -0.1).logical_and(x < 0.05);
  return x + 0.2 * is_near.to(make.type);
}

OpCase xielu_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const at::Tensor x = random_inputs({type, device}, size), by = numbers_on(device);
  return {.comparisons = {{"y", xielu(x, by), reference::xielu(leaf(x), leaf(by))}},
          .run = [=] { xielu(x, by); },
          .bytes = 2 * bytes_of({x})};
}

OpCase xielu_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = random_inputs(make, size), by = numbers_on(device);
  const at::Tensor dy = make.random(x.sizes()), x64 = leaf(x), by64 = leaf(by);
  torch::autograd::backward({reference::xielu(x64, by64)}, {wide(dy)});
  const at::Tensor own = x.clone();
  const at::Tensor of_alphas = xielu_backward_(own, dy, by);
  const auto value = [=](const at::Tensor& alphas) {
    return weighted(xielu(x, at::cat({alphas, by.narrow(0, 2, 2)})), dy);
  };
  return {
      .comparisons = {{"x", own, x64.grad()}, {"alphas", of_alphas, by64.grad().narrow(0, 0, 2)}},
      .slopes = {{"x", x, own, [=](const at::Tensor& v) { return weighted(xielu(v, by), dy); }},
                 {"alphas", by.narrow(0, 0, 2).clone(), of_alphas, value}},
      .run = [=] { xielu_backward_(own, dy, by); },
      .bytes = 3 * bytes_of({x})};
}

}  // namespace

std::vector<OpRow> activation_ops() {
  const OpSize timed{2048, 1376};
  return {{"xielu", kBoth, kPlainSizes, timed, xielu_case},
          {"xielu_backward", kBoth, kPlainSizes, timed, xielu_backward_case}};
}

}  // namespace strata::ops
