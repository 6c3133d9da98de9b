// Oracle: the definition (transformers 5.23, Ernie4_5_MoeTopKRouter) with ATen's autograd in double
// precision, also of the loss that balances experts.
#include "strata/nn/experts/corrected_router.h"

#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/nn/experts/router_balance.h"

namespace strata::nn {
namespace {

at::Tensor make_logits() {
  at::manual_seed(4);
  return at::randn({7, 5}).requires_grad_(true);
}

// Large enough that the experts of some tokens are not the most probable ones.
at::Tensor correction() { return at::tensor({-0.3, 0.2, 0.0, 0.1, -0.1}).to(at::kFloat); }

struct Expected {
  at::Tensor probabilities, experts, weights;
};

Expected define(const at::Tensor& exact, const CorrectedRouterOptions& options) {
  const at::Tensor probabilities = at::softmax(exact, /*dim=*/1);
  const at::Tensor experts =
      std::get<1>(at::topk(probabilities + correction(), options.experts_per_token, /*dim=*/1));
  const at::Tensor chosen = probabilities.gather(1, experts);
  return {probabilities, experts, chosen / at::clamp_min(chosen.sum(1, true), options.least_sum)};
}

class CorrectedRouter : public testing::TestWithParam<CorrectedRouterOptions> {};

TEST_P(CorrectedRouter, ChoosesAndWeighsAsDefined) {
  at::Tensor leaf = make_logits();
  const Routing routing =
      route_by_corrected_softmax(leaf, correction().view({1, 5}), GetParam(), at::kFloat);
  const at::Tensor exact = reference_leaf(leaf);
  const Expected expected = define(exact, GetParam());
  EXPECT_TRUE(at::equal(routing.experts, expected.experts));
  EXPECT_LT(relative_error(routing.weights, expected.weights), 1e-6);
  const at::Tensor gradient = at::randn(routing.weights.sizes());
  torch::autograd::backward({routing.weights}, {gradient});
  torch::autograd::backward({expected.weights}, {gradient.to(at::kDouble)});
  EXPECT_LT(relative_error(leaf.grad(), exact.grad()), 1e-5);
}

// The sums of some tokens are below 0.8 and 0.6, those of others are not.
INSTANTIATE_TEST_SUITE_P(Options, CorrectedRouter,
                         testing::Values(CorrectedRouterOptions{2, 1e-12},
                                         CorrectedRouterOptions{3, 0.8},
                                         CorrectedRouterOptions{2, 0.6},
                                         CorrectedRouterOptions{5, 1e-12}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(CorrectedRouter, RoundsWeights) {
  const Routing routing = route_by_corrected_softmax(
      make_logits(), correction(), {.experts_per_token = 2, .least_sum = 1e-12}, at::kBFloat16);
  EXPECT_TRUE(at::equal(routing.weights, routing.weights.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
}

TEST(BalancedLogits, HaveTheGradientOfTheLossBesideTheirOwn) {
  constexpr int64_t kPerToken = 2;
  at::Tensor leaf = make_logits();
  const at::Tensor exact = reference_leaf(leaf);
  const at::Tensor probabilities = at::softmax(exact, /*dim=*/1);
  const at::Tensor experts = std::get<1>(at::topk(probabilities, kPerToken, /*dim=*/1));
  const at::Tensor shares = at::one_hot(experts, 5).to(at::kDouble).sum({0, 1}) / 7;
  const at::Tensor loss = 5 * (shares * probabilities.mean(0)).sum();
  const at::Tensor slopes = at::sin(at::arange(35, at::kFloat)).view({7, 5});
  torch::autograd::backward({(exact * slopes).sum() + 0.7 * loss});

  ExpertBalance balance(/*scale=*/0.7);
  ForwardContext context{.balance = &balance};
  const at::Tensor logits = balanced(leaf, kPerToken, context);
  EXPECT_TRUE(at::equal(logits, leaf));
  context.pass.wants_output = false;  // runs again, which adds nothing
  torch::autograd::backward({balanced(leaf, kPerToken, context)}, {slopes});
  EXPECT_LT(relative_error(leaf.grad(), exact.grad()), 1e-5);
  EXPECT_NEAR(balance.loss(), loss.item<double>(), 1e-6);
  EXPECT_TRUE(balanced(leaf, kPerToken, {}).is_same(leaf));
}

}  // namespace
}  // namespace strata::nn
