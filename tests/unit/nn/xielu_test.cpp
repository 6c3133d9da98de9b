// Oracle: transformers' formula from ATen's operations in double, differentiated by autograd.
#include "strata/nn/xielu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "gathered.h"

namespace strata::nn {
namespace {

// In the order alpha_p, alpha_n, beta, eps.
at::Tensor expected_of(const at::Tensor& x, const std::vector<at::Tensor>& numbers) {
  const at::Tensor& beta = numbers[2];
  const at::Tensor bend = at::expm1(at::minimum(x, numbers[3])) - x;
  return at::where(x > 0, at::softplus(numbers[0]) * x * x + beta * x,
                   bend * (beta + at::softplus(numbers[1])) + beta * x);
}

void equals_reference(at::ScalarType type, double limit) {
  Xielu activation("mlp.act_fn", type);
  std::vector<Parameter*> parameters;
  activation.append_parameters(parameters);
  std::vector<at::Tensor> leaves;
  const double begins[] = {0.9, -0.4, 0.45, -0.02};
  for (size_t i = 0; i < parameters.size(); ++i) {
    give_memory(*parameters[i], type);
    parameters[i]->attach_value(at::full(parameters[i]->shape(), begins[i]).to(type));
    leaves.push_back(reference_leaf(parameters[i]->value()));
  }
  const at::Tensor x = at::randn({9, 37}).to(type).requires_grad_(true), x64 = reference_leaf(x);
  const at::Tensor dy = at::randn({9, 37}).to(type);
  const Remakable y = activation.forward(x * 1.0);
  EXPECT_TRUE(at::equal(y.remake(), y.value));
  const at::Tensor expected = expected_of(x64, leaves);
  torch::autograd::backward({y.value}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(y.value, expected), limit);
  EXPECT_LT(relative_error(x.grad(), x64.grad()), limit);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LT(relative_error(gradient_of(*parameters[i]), leaves[i].grad()), limit)
        << parameters[i]->name();
  }
}

TEST(Xielu, EqualsTheFormula) {
  at::manual_seed(5);
  equals_reference(at::kFloat, 1e-6);
  equals_reference(at::kBFloat16, 1e-2);
}

TEST(Xielu, FrozenAlphasGetNothing) {
  Xielu activation("mlp.act_fn", at::kFloat);
  std::vector<Parameter*> parameters;
  activation.append_parameters(parameters);
  for (Parameter* parameter : parameters) {
    give_memory(*parameter);
    parameter->set_requires_grad(false);
  }
  const at::Tensor x = at::randn({2, 3}).requires_grad_(true);
  torch::autograd::backward({activation.forward(x * 1.0).value}, {at::ones({2, 3})});
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  for (Parameter* parameter : parameters) EXPECT_FALSE(parameter->detach_grad());
}

TEST(Xielu, BetaAndEpsAreBuffers) {
  Xielu activation("a.act_fn", at::kBFloat16);
  std::vector<Parameter*> parameters;
  activation.append_parameters(parameters);
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_EQ(parameters[0]->name(), "a.act_fn.alpha_p");
  EXPECT_EQ(parameters[3]->name(), "a.act_fn.eps");
  EXPECT_FALSE(parameters[1]->is_buffer());
  EXPECT_TRUE(parameters[2]->is_buffer() && parameters[3]->is_buffer());
  EXPECT_TRUE(parameters[2]->shape().empty());
}

TEST(Xielu, BeginsAsTheReference) {
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_NEAR(softplus(*Xielu::initial_value("layers.0.mlp.act_fn.alpha_p")), 0.8, 1e-12);
  EXPECT_NEAR(softplus(*Xielu::initial_value("layers.0.mlp.act_fn.alpha_n")) + 0.5, 0.8, 1e-12);
  EXPECT_EQ(*Xielu::initial_value("layers.0.mlp.act_fn.beta"), 0.5);
  EXPECT_FALSE(Xielu::initial_value("layers.0.mlp.up_proj.weight"));
}

}  // namespace
}  // namespace strata::nn
