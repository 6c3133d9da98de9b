// Oracle: ATen's autograd in double precision over every expert for every token.
#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/fused_experts.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 7, kHidden = 6, kWidth = 5, kExperts = 9;
constexpr ops::ClampedGate kGate{.alpha = 1.3f, .limit = 0.5f};

struct Layer {
  Parameter gate_up{"gate_up", {kExperts, kHidden, 2 * kWidth}, at::kFloat};
  Parameter gate_up_bias{"gate_up_bias", {kExperts, 2 * kWidth}, at::kFloat};
  Parameter down{"down", {kExperts, kWidth, kHidden}, at::kFloat};
  Parameter down_bias{"down_bias", {kExperts, kHidden}, at::kFloat};

  Layer() {
    for (Parameter* p : all()) give_memory(*p);
  }
  std::vector<Parameter*> all() { return {&gate_up, &gate_up_bias, &down, &down_bias}; }
  FusedExperts experts() { return {&gate_up, &gate_up_bias, &down, &down_bias, kGate}; }
};

// Softmax over the chosen logits alone.
at::Tensor reference(const std::vector<at::Tensor>& leaves, const at::Tensor& x,
                     const at::Tensor& logits, int64_t per_token) {
  const auto [best, experts] = at::topk(logits, per_token, 1);
  const at::Tensor weights = at::softmax(best, 1);
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor both = (at::mm(x, leaves[0][e]) + leaves[1][e]).view({kTokens, kWidth, 2});
    const at::Tensor gate = both.select(2, 0).clamp_max(kGate.limit);
    const at::Tensor up = both.select(2, 1).clamp(-kGate.limit, kGate.limit);
    const at::Tensor gated = (up + 1) * gate * at::sigmoid(gate * kGate.alpha);
    const at::Tensor out = at::mm(gated, leaves[2][e]) + leaves[3][e];
    y = y + out * (weights * (experts == e)).sum(1, true);
  }
  return y;
}

struct Inputs {
  at::Tensor x, logits, residual;
};

// The last expert is chosen by no token.
Inputs make_inputs() {
  at::manual_seed(3);
  at::Tensor logits = at::randn({kTokens, kExperts});
  logits.select(1, kExperts - 1).sub_(20);
  return {at::randn({kTokens, kHidden}).requires_grad_(true), logits.requires_grad_(true),
          at::randn({kTokens, kHidden}).requires_grad_(true)};
}

at::Tensor forward(Layer& layer, const Inputs& in, int64_t per_token,
                   const ForwardContext& context = {}) {
  return add_fused_experts_last(
      layer.experts(), Remakable(in.x), in.residual,
      route(in.logits, {.experts_per_token = per_token, .normalizes = true}, context), context);
}

class FusedGradients : public testing::TestWithParam<int64_t> {};

TEST_P(FusedGradients, EqualThoseOfTheSumOverAll) {
  const int64_t per_token = GetParam();
  const Inputs in = make_inputs();
  Layer layer;
  std::vector<at::Tensor> leaves;
  for (const Parameter* p : layer.all()) leaves.push_back(reference_leaf(p->value()));
  const at::Tensor x64 = reference_leaf(in.x), logits64 = reference_leaf(in.logits);
  const at::Tensor expected = reference(leaves, x64, logits64, per_token);
  const at::Tensor y = forward(layer, in, per_token);
  EXPECT_LT(relative_error(y, expected + in.residual.to(at::kDouble)), 1e-5);

  const at::Tensor dy = at::randn({kTokens, kHidden});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(in.x.grad(), x64.grad()), 1e-5);
  EXPECT_TRUE(at::equal(in.residual.grad(), dy));
  if (per_token > 1) {  // the weight of one is 1 whatever the logits
    EXPECT_LT(relative_error(in.logits.grad(), logits64.grad()), 1e-5);
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor found = gradient_of(*layer.all()[i]);
    EXPECT_LT(relative_error(found, leaves[i].grad()), 1e-5) << layer.all()[i]->name();
    EXPECT_EQ(found[kExperts - 1].count_nonzero().item<int64_t>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, FusedGradients, testing::Values(1, 3));

TEST(FusedExperts, GradientsDoNotNeedTheResult) {
  Layer whole, without;
  std::vector<at::Tensor> gradients[2];
  for (int i = 0; i < 2; ++i) {
    Layer& layer = i == 0 ? whole : without;
    if (i == 1) {
      for (size_t p = 0; p < 4; ++p) layer.all()[p]->attach_value(whole.all()[p]->value());
    }
    const Inputs in = make_inputs();
    ForwardContext context;
    context.wants_output = i == 0;
    const at::Tensor y = forward(layer, in, 2, context);
    torch::autograd::backward({y}, {at::ones({kTokens, kHidden})});
    gradients[i] = {in.x.grad(), in.logits.grad()};
    for (Parameter* p : layer.all()) gradients[i].push_back(gradient_of(*p));
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

}  // namespace
}  // namespace strata::nn
