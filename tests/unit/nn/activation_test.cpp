// Oracle: libtorch's relu and square in double, differentiated by autograd.
#include "strata/nn/activation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "gathered.h"

namespace strata::nn {
namespace {

TEST(Activation, SquaredReluHasValuesAndGradients) {
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double limit = type == at::kFloat ? 1e-6 : 1e-2;
    const at::Tensor x = at::randn({4, 6}).to(type).requires_grad_(true), x64 = reference_leaf(x);
    const Remakable y = activate(x * 1.0, Activation::kSquaredRelu);
    const at::Tensor expected = at::relu(x64).square(), dy = at::randn({4, 6}).to(type);
    EXPECT_LT(relative_error(y.value, expected), limit);
    EXPECT_TRUE(at::equal(y.remake(), y.value));
    torch::autograd::backward({y.value}, {dy});
    torch::autograd::backward({expected}, {dy.to(at::kDouble)});
    EXPECT_LT(relative_error(x.grad(), x64.grad()), limit);
  }
}

}  // namespace
}  // namespace strata::nn
