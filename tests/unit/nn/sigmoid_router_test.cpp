// Oracle: transformers 5.23, Glm4MoeTopkRouter over an identity, by its numbers; of gradients
// ATen's autograd in double precision over the definition.
#include "strata/nn/experts/sigmoid_router.h"

#include <gtest/gtest.h>

#include "gathered.h"

namespace strata::nn {
namespace {

// Four tokens, eight experts.
at::Tensor logits() {
  return at::tensor({-2.375, 2.75,  4.25,   -0.75, 0.75,  2.25,  4.25,  0.25,    //
                     -1.25,  2.625, -2.375, -1.5,  2.25,  1.875, 0.0,   -0.25,   //
                     0.875,  1.375, -1.5,   -1.25, -0.75, -2.25, 0.875, -1.125,  //
                     -3.5,   0.75,  1.625,  0.125, -1.0,  0.75,  0.5,   2.375})
      .to(at::kFloat)
      .view({4, 8});
}

at::Tensor correction() {
  return at::tensor({0.15625, 0.03125, -0.0625, -0.03125, 0.0625, -0.34375, 0.125, -0.1875})
      .to(at::kFloat);
}

struct Case {
  SigmoidRouterOptions options;
  std::vector<int64_t> experts;  // of each token, ascending
  std::vector<double> weights;   // of those
};

const Case kCases[] = {
    {{.experts_per_token = 3, .normalizes = true, .scale = 2.5},
     {1, 2, 6, 1, 4, 6, 0, 1, 6, 2, 6, 7},
     {0.80699, 0.8465, 0.8465, 0.99745, 0.9677, 0.53485, 0.79849, 0.90303, 0.79849, 0.88026,
      0.65582, 0.96393}},
    {{.experts_per_token = 3, .normalizes = true, .groups = {.count = 4, .chosen = 2}},
     {4, 5, 6, 1, 4, 5, 0, 1, 6, 2, 6, 7},
     {0.2643, 0.35204, 0.38367, 0.34482, 0.33454, 0.32063, 0.31939, 0.36121, 0.31939, 0.3521,
      0.26233, 0.38557}},
    {{.experts_per_token = 4, .normalizes = false, .scale = 0.75, .groups = {.count = 2}},
     {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3},
     {0.06382, 0.70494, 0.73945, 0.24062, 0.67849, 0.65028, 0.375, 0.32837, 0.52934, 0.59864,
      0.13682, 0.16703, 0.02198, 0.50938, 0.62661, 0.39841}},
    {{.experts_per_token = 2, .normalizes = true, .groups = {.count = 4}},
     {6, 7, 4, 5, 0, 1, 6, 7},
     {0.63686, 0.36314, 0.51062, 0.48938, 0.46928, 0.53072, 0.40489, 0.59511}},
    {{.experts_per_token = 2, .normalizes = false, .groups = {.count = 4, .chosen = 4}},
     {1, 6, 1, 4, 0, 6, 2, 6},
     {0.93991, 0.98594, 0.93245, 0.90465, 0.70579, 0.70579, 0.83548, 0.62246}},
};

class Chooses : public testing::TestWithParam<Case> {};

TEST_P(Chooses, AsTheReferenceDoes) {
  const Case& expected = GetParam();
  const int64_t k = expected.options.experts_per_token;
  const Routing routing = route_by_sigmoid(logits(), correction(), expected.options);
  const auto [experts, order] = at::sort(routing.experts, /*dim=*/1);
  EXPECT_TRUE(at::equal(experts, at::tensor(expected.experts).view({4, k})));
  const at::Tensor weights = routing.weights.gather(1, order);
  EXPECT_TRUE(at::allclose(weights, at::tensor(expected.weights).to(at::kFloat).view({4, k}),
                           /*rtol=*/0, /*atol=*/1e-5));
}

TEST_P(Chooses, WithTheGradientOfTheDefinition) {
  const SigmoidRouterOptions& options = GetParam().options;
  at::Tensor leaf = logits().requires_grad_(true);
  const Routing routing = route_by_sigmoid(leaf, correction(), options);
  const at::Tensor exact = reference_leaf(leaf);
  at::Tensor weights = at::sigmoid(exact).gather(1, routing.experts);
  if (options.normalizes) weights = weights / weights.sum(1, true);
  at::manual_seed(2);
  const at::Tensor gradient = at::randn(routing.weights.sizes());
  torch::autograd::backward({routing.weights}, {gradient});
  torch::autograd::backward({weights * options.scale}, {gradient.to(at::kDouble)});
  EXPECT_LT(relative_error(leaf.grad(), exact.grad()), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Routers, Chooses, testing::ValuesIn(kCases));

TEST(SigmoidRouter, GivesScoresOfZeroWeightsOfZero) {
  at::Tensor leaf = at::full({1, 4}, -200.0f).requires_grad_(true);
  const Routing routing =
      route_by_sigmoid(leaf, at::zeros({4}), {.experts_per_token = 2, .normalizes = true});
  torch::autograd::backward({routing.weights}, {at::ones({1, 2})});
  EXPECT_TRUE(at::equal(routing.weights, at::zeros({1, 2})));
  EXPECT_TRUE(at::equal(leaf.grad(), at::zeros({1, 4})));
}

TEST(SigmoidRouter, ChoosesByLogitsWhereAllScoresAreOne) {
  at::Tensor leaf = at::tensor({30.0f, 90.0f, 20.0f, 60.0f}).view({1, 4}).requires_grad_(true);
  const Routing routing = route_by_sigmoid(
      leaf, {}, {.experts_per_token = 2, .normalizes = false, .chooses_by_logits = true});
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({1, 3}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::equal(routing.weights, at::ones({1, 2})));
}

}  // namespace
}  // namespace strata::nn
