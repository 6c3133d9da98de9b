// Oracle: ATen's autograd in double precision over every expert for every token, whose weights
// scale what the expert reads (transformers Llama4TextMoe).
#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/experts/fused_experts.h"
#include "strata/nn/experts/sigmoid_router.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 7, kHidden = 6, kWidth = 5, kExperts = 4;

struct Layer {
  Parameter gate_up{"gate_up", {kExperts, kHidden, 2 * kWidth}, at::kFloat};
  Parameter down{"down", {kExperts, kWidth, kHidden}, at::kFloat};

  Layer() {
    give_memory(gate_up);
    give_memory(down);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& logits, const at::Tensor& residual,
                     int64_t per_token, const ForwardContext& context = {}) {
    const Routing routing = route_by_sigmoid(logits, at::zeros({kExperts}),
                                             {.experts_per_token = per_token, .normalizes = false});
    return add_fused_experts_last({.gate_up = {.weight = &gate_up},
                                   .down = {.weight = &down},
                                   .gate = ops::GateKind::kSilu,
                                   .scales_inputs = true},
                                  Remakable(x), residual, routing, context);
  }
};

at::Tensor define(const at::Tensor& gate_up, const at::Tensor& down, const at::Tensor& x,
                  const at::Tensor& logits, int64_t per_token) {
  const at::Tensor chosen = std::get<1>(at::topk(logits, per_token, 1));
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor is_chosen = (chosen == e).any(1, true);
    const at::Tensor read = x * at::sigmoid(logits.narrow(1, e, 1)) * is_chosen;
    const std::vector<at::Tensor> both = at::mm(read, gate_up[e]).chunk(2, 1);
    y = y + at::mm(at::silu(both[0]) * both[1], down[e]);
  }
  return y;
}

class ScaledExperts : public testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(ScaledExperts, HaveTheGradientsOfTheDefinition) {
  const auto [per_token, experts_train] = GetParam();
  at::manual_seed(3);
  const at::Tensor x = at::randn({kTokens, kHidden}).requires_grad_(true);
  const at::Tensor logits = at::randn({kTokens, kExperts}).requires_grad_(true);
  const at::Tensor residual = at::randn({kTokens, kHidden}).requires_grad_(true);
  Layer layer;
  layer.gate_up.set_requires_grad(experts_train);
  layer.down.set_requires_grad(experts_train);
  const at::Tensor gate_up64 = reference_leaf(layer.gate_up.value());
  const at::Tensor down64 = reference_leaf(layer.down.value());
  const at::Tensor x64 = reference_leaf(x), logits64 = reference_leaf(logits);
  const at::Tensor expected = define(gate_up64, down64, x64, logits64, per_token);
  const at::Tensor y = layer.forward(x, logits, residual, per_token);
  EXPECT_LT(relative_error(y, expected + residual.to(at::kDouble)), 1e-5);

  const at::Tensor dy = at::randn({kTokens, kHidden});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(logits.grad(), logits64.grad()), 1e-5);
  EXPECT_TRUE(at::equal(residual.grad(), dy));
  if (!experts_train) return;
  EXPECT_LT(relative_error(gradient_of(layer.gate_up), gate_up64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(layer.down), down64.grad()), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Choices, ScaledExperts,
                         testing::Combine(testing::Values(1, 3), testing::Bool()));

// The router trains where what it reads has no gradient.
TEST(ScaledExperts, OfAFrozenInputLetTheRouterTrain) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({kTokens, kHidden});
  const at::Tensor logits = at::randn({kTokens, kExperts}).requires_grad_(true);
  Layer layer;
  const at::Tensor logits64 = reference_leaf(logits);
  const at::Tensor expected =
      define(layer.gate_up.value().to(at::kDouble), layer.down.value().to(at::kDouble),
             x.to(at::kDouble), logits64, /*per_token=*/2);
  const at::Tensor y = layer.forward(x, logits, at::zeros({kTokens, kHidden}), /*per_token=*/2);
  const at::Tensor dy = at::randn({kTokens, kHidden});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(logits.grad(), logits64.grad()), 1e-5);
}

}  // namespace
}  // namespace strata::nn
