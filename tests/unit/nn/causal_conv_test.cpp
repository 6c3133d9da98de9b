// Oracle: at::conv1d and at::silu of each document, and autograd's gradients of that.
#include "strata/nn/linear_attention/causal_conv.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata::nn {
namespace {

const std::vector<int64_t> kOffsets{0, 5, 6, 8, 20};

Batch batch_of(const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> positions;
  for (size_t d = 1; d < offsets.size(); ++d) {
    positions.push_back(at::arange(offsets[d] - offsets[d - 1]));
  }
  return {.positions = at::cat(positions), .offsets = offsets};
}

at::Tensor expected_of(const at::Tensor& x, const at::Tensor& weight,
                       const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> parts;
  for (size_t d = 1; d < offsets.size(); ++d) {
    const int64_t length = offsets[d] - offsets[d - 1];
    const at::Tensor rows = x.narrow(0, offsets[d - 1], length).t().unsqueeze(0);
    const at::Tensor y = at::conv1d(rows, weight, /*bias=*/{}, /*stride=*/1,
                                    /*padding=*/weight.size(2) - 1, /*dilation=*/1, x.size(1));
    parts.push_back(at::silu(y.narrow(2, 0, length)).squeeze(0).t());
  }
  return at::cat(parts);
}

void expect_convolution(int64_t kernel) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({20, 7}), values = at::randn({7, 1, kernel});
  const at::Tensor dy = at::randn({20, 7});
  Parameter weight("conv1d.weight", {7, 1, kernel}, at::kFloat);
  const at::Tensor gradient = at::empty({7, 1, kernel});
  weight.attach_value(values);
  weight.attach_grad(gradient, /*overwrite=*/true);
  const at::Tensor leaf = x.clone().requires_grad_();
  const Batch batch = batch_of(kOffsets);
  const at::Tensor y = causal_conv_silu(leaf, weight, batch);
  const at::Tensor dx = torch::autograd::grad({y}, {leaf}, {dy})[0];

  const at::Tensor x2 = x.clone().requires_grad_(), w2 = values.clone().requires_grad_();
  const at::Tensor y2 = expected_of(x2, w2, kOffsets);
  const auto expected = torch::autograd::grad({y2}, {x2, w2}, {dy});
  EXPECT_TRUE(at::allclose(y, y2, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(dx, expected[0], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(gradient, expected[1], 1e-5, 1e-5));
}

TEST(CausalConv, EqualsConvolutionOfEachDocument) {
  for (const int64_t kernel : {1, 2, 4, 9}) expect_convolution(kernel);
}

// c * conv(b * x) with a bias; by autograd as above.
TEST(CausalConv, BetweenTwoGates) {
  at::manual_seed(2);
  const at::Tensor gates = at::randn({20, 15}), values = at::randn({5, 1, 3});
  const at::Tensor offset = at::randn({5}), dy = at::randn({20, 5});
  Parameter weight("conv.weight", {5, 1, 3}, at::kFloat), bias("conv.bias", {5}, at::kFloat);
  const at::Tensor dweight = at::empty({5, 1, 3}), dbias = at::empty({5});
  weight.attach_value(values);
  weight.attach_grad(dweight, /*overwrite=*/true);
  bias.attach_value(offset);
  bias.attach_grad(dbias, /*overwrite=*/true);
  const at::Tensor leaf = gates.clone().requires_grad_();
  const at::Tensor y = gated_causal_conv(leaf, weight, batch_of(kOffsets), &bias);
  const at::Tensor dgates = torch::autograd::grad({y}, {leaf}, {dy})[0];

  const at::Tensor g = gates.clone().requires_grad_(), w = values.clone().requires_grad_();
  const at::Tensor b = offset.clone().requires_grad_();
  const auto parts = g.chunk(3, 1);
  const at::Tensor inputs = parts[0] * parts[2];
  std::vector<at::Tensor> rows;
  for (size_t d = 1; d < kOffsets.size(); ++d) {
    const int64_t length = kOffsets[d] - kOffsets[d - 1];
    const at::Tensor x = inputs.narrow(0, kOffsets[d - 1], length).t().unsqueeze(0);
    rows.push_back(at::conv1d(x, w, b, /*stride=*/1, /*padding=*/2, /*dilation=*/1, 5)
                       .narrow(2, 0, length)
                       .squeeze(0)
                       .t());
  }
  const at::Tensor y2 = parts[1] * at::cat(rows);
  const auto expected = torch::autograd::grad({y2}, {g, w, b}, {dy});
  EXPECT_TRUE(at::allclose(y, y2, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(dgates, expected[0], 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(dweight, expected[1], 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(dbias, expected[2], 1e-5, 1e-5));
}

TEST(CausalConv, GoesOnAfterEarlierTokens) {
  const at::Tensor x = at::randn({9, 3}), values = at::randn({3, 1, 4});
  Parameter weight("conv1d.weight", {3, 1, 4}, at::kFloat);
  weight.attach_value(values);
  const at::Tensor whole = expected_of(x, values, {0, 9});
  at::Tensor before;
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : {2, 1, 1, 5}) {
    parts.push_back(causal_conv_silu_after(before, x.narrow(0, begin, count), weight));
    begin += count;
  }
  EXPECT_TRUE(at::allclose(at::cat(parts), whole, 1e-5, 1e-6));
}

}  // namespace
}  // namespace strata::nn
