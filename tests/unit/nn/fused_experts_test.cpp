// Oracle: ATen's autograd in double precision over every expert for every token; of branches, what
// PEFT makes of their tensors.
#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/experts/fused_experts.h"
#include "strata/nn/experts/grouped_product.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 7, kHidden = 6, kWidth = 5, kExperts = 9;
constexpr ops::ClampedGate kGate{.alpha = 1.3f, .limit = 0.5f};

struct Sizes {
  int64_t hidden = kHidden, width = kWidth;
};
// Of rows that begin at multiples of 16 bytes, as products of all experts at once ask.
constexpr Sizes kAligned{.hidden = 8, .width = 4};

// Products of all experts at once, wherever they can be.
struct AtOnce {
  explicit AtOnce(bool chosen) {
    if (chosen) choose_grouped_products(GroupedProducts::kAlways);
  }
  ~AtOnce() {
    EXPECT_EQ(grouped_product_refusal(), "");
    choose_grouped_products(GroupedProducts::kWhereFaster);
  }
};

struct Layer {
  Sizes sizes;
  Parameter gate_up{"gate_up", {kExperts, sizes.hidden, 2 * sizes.width}, at::kFloat};
  Parameter gate_up_bias{"gate_up_bias", {kExperts, 2 * sizes.width}, at::kFloat};
  Parameter down{"down", {kExperts, sizes.width, sizes.hidden}, at::kFloat};
  Parameter down_bias{"down_bias", {kExperts, sizes.hidden}, at::kFloat};

  explicit Layer(const Sizes& of = {}) : sizes(of) {
    for (Parameter* p : all()) give_memory(*p);
  }
  std::vector<Parameter*> all() { return {&gate_up, &gate_up_bias, &down, &down_bias}; }
  FusedExperts experts() {
    return {.gate_up = {.weight = &gate_up, .bias = &gate_up_bias},
            .down = {.weight = &down, .bias = &down_bias},
            .gate = kGate};
  }
};

// Softmax over the chosen logits alone.
at::Tensor reference(const std::vector<at::Tensor>& leaves, const at::Tensor& x,
                     const at::Tensor& logits, int64_t per_token) {
  const auto [best, experts] = at::topk(logits, per_token, 1);
  const at::Tensor weights = at::softmax(best, 1);
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor both = (at::mm(x, leaves[0][e]) + leaves[1][e]).view({kTokens, -1, 2});
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
Inputs make_inputs(const Sizes& sizes = {}) {
  at::manual_seed(3);
  at::Tensor logits = at::randn({kTokens, kExperts});
  logits.select(1, kExperts - 1).sub_(20);
  return {at::randn({kTokens, sizes.hidden}).requires_grad_(true), logits.requires_grad_(true),
          at::randn({kTokens, sizes.hidden}).requires_grad_(true)};
}

at::Tensor forward(Layer& layer, const Inputs& in, int64_t per_token,
                   const ForwardContext& context = {}) {
  return add_fused_experts_last(
      layer.experts(), Remakable(in.x), in.residual,
      route(in.logits, {.experts_per_token = per_token, .normalizes = true}, context), context);
}

// Experts per token; whether all experts are multiplied at once.
class FusedGradients : public testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(FusedGradients, EqualThoseOfTheSumOverAll) {
  const auto [per_token, at_once] = GetParam();
  const AtOnce products(at_once);
  const Sizes sizes = at_once ? kAligned : Sizes{};
  const Inputs in = make_inputs(sizes);
  Layer layer(sizes);
  std::vector<at::Tensor> leaves;
  for (const Parameter* p : layer.all()) leaves.push_back(reference_leaf(p->value()));
  const at::Tensor x64 = reference_leaf(in.x), logits64 = reference_leaf(in.logits);
  const at::Tensor expected = reference(leaves, x64, logits64, per_token);
  const at::Tensor y = forward(layer, in, per_token);
  EXPECT_LT(relative_error(y, expected + in.residual.to(at::kDouble)), 1e-5);

  const at::Tensor dy = at::randn({kTokens, sizes.hidden});
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

INSTANTIATE_TEST_SUITE_P(Choices, FusedGradients,
                         testing::Combine(testing::Values(1, 3), testing::Bool()));

// Frozen experts with branches of rank 2 and 1.
struct BranchedLayer : Layer {
  ExpertBranch gate_up_branch{.a = {"gate_up.a", {kExperts * 2, kHidden}, at::kFloat},
                              .b = {"gate_up.b", {2 * kWidth, 2 * kExperts}, at::kFloat},
                              .num_experts = kExperts,
                              .scaling = 1.7};
  ExpertBranch down_branch{.a = {"down.a", {kExperts, kWidth}, at::kFloat},
                           .b = {"down.b", {kHidden, kExperts}, at::kFloat},
                           .num_experts = kExperts,
                           .scaling = 0.6};

  BranchedLayer() {
    for (Parameter* p : all()) p->set_requires_grad(false);
    for (Parameter* p : trained()) give_memory(*p);
  }
  std::vector<Parameter*> trained() {
    return {&gate_up_branch.a, &gate_up_branch.b, &down_branch.a, &down_branch.b};
  }
  FusedExperts experts() {
    FusedExperts experts = Layer::experts();
    experts.gate_up.branch = &gate_up_branch;
    experts.down.branch = &down_branch;
    return experts;
  }
};

// PEFT's get_delta_weight() for weights [experts, in, out].
at::Tensor delta(const at::Tensor& a, const at::Tensor& b, double scaling) {
  return at::einsum("ore,eri->eio",
                    {b.reshape({b.size(0), -1, kExperts}), a.reshape({kExperts, -1, a.size(1)})}) *
         scaling;
}

class BranchGradients : public testing::TestWithParam<int> {};

TEST_P(BranchGradients, EqualThoseOfDeltaWeights) {
  const bool wants_output = GetParam() == 0;
  const Inputs in = make_inputs();
  BranchedLayer layer;
  std::vector<at::Tensor> leaves, branches;
  for (const Parameter* p : layer.all()) leaves.push_back(p->value().to(at::kDouble));
  for (const Parameter* p : layer.trained()) branches.push_back(reference_leaf(p->value()));
  leaves[0] = leaves[0] + delta(branches[0], branches[1], 1.7);
  leaves[2] = leaves[2] + delta(branches[2], branches[3], 0.6);
  const at::Tensor x64 = reference_leaf(in.x), logits64 = reference_leaf(in.logits);
  const at::Tensor expected = reference(leaves, x64, logits64, 3);
  ForwardContext context;
  context.pass.wants_output = wants_output;
  const at::Tensor y = add_fused_experts_last(
      layer.experts(), Remakable(in.x), in.residual,
      route(in.logits, {.experts_per_token = 3, .normalizes = true}, context), context);
  if (wants_output) {
    EXPECT_LT(relative_error(y, expected + in.residual.to(at::kDouble)), 1e-5);
  }
  const at::Tensor dy = at::randn({kTokens, kHidden});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(in.x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(in.logits.grad(), logits64.grad()), 1e-5);
  for (size_t i = 0; i < branches.size(); ++i) {
    Parameter& parameter = *layer.trained()[i];
    EXPECT_LT(relative_error(gradient_of(parameter), branches[i].grad()), 1e-5) << parameter.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Outputs, BranchGradients, testing::Values(0, 1));

// The second use of a parameter adds, and where the input needs no gradient none is made.
TEST(FusedExperts, BranchesAddToTheirGradients) {
  BranchedLayer layer;
  Inputs in = make_inputs();
  in.x = in.x.detach();
  std::vector<at::Tensor> once;
  for (int use = 0; use < 2; ++use) {
    const at::Tensor y = add_fused_experts_last(
        layer.experts(), Remakable(in.x), in.residual,
        route(in.logits, {.experts_per_token = 2, .normalizes = true}, {}), {});
    torch::autograd::backward({y}, {at::ones({kTokens, kHidden})});
    if (use > 0) continue;
    for (Parameter* p : layer.trained()) once.push_back(p->grad().tensor.clone());
  }
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_LT(relative_error(gradient_of(*layer.trained()[i]), once[i] * 2), 1e-6);
  }
}

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
    context.pass.wants_output = i == 0;
    const at::Tensor y = forward(layer, in, 2, context);
    torch::autograd::backward({y}, {at::ones({kTokens, kHidden})});
    gradients[i] = {in.x.grad(), in.logits.grad()};
    for (Parameter* p : layer.all()) gradients[i].push_back(gradient_of(*p));
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
}

// Rows of outputs, gate and up as halves, no biases; a number of each expert scales its weights.
struct PlainLayer {
  Sizes sizes;
  Parameter gate_up{"gate_up", {kExperts, 2 * sizes.width, sizes.hidden}, at::kFloat};
  Parameter down{"down", {kExperts, sizes.hidden, sizes.width}, at::kFloat};
  Parameter scales{"scales", {kExperts}, at::kFloat};

  explicit PlainLayer(const Sizes& of) : sizes(of) {
    for (Parameter* p : all()) give_memory(*p);
  }
  std::vector<Parameter*> all() { return {&gate_up, &down, &scales}; }

  at::Tensor forward(const Inputs& in, ops::GateKind gate) {
    const FusedExperts experts{.gate_up = {.weight = &gate_up, .rows_are_outputs = true},
                               .down = {.weight = &down, .rows_are_outputs = true},
                               .gate = gate};
    const Routing routing =
        route(in.logits, {.experts_per_token = 3, .normalizes = true, .rounds = false}, {});
    return add_fused_experts_last(experts, Remakable(in.x), in.residual,
                                  scaled_by_expert(routing, scales), {});
  }
};

at::Tensor reference_of_halves(const std::vector<at::Tensor>& leaves, const at::Tensor& x,
                               const at::Tensor& logits, ops::GateKind gate) {
  const auto [best, experts] = at::topk(logits, 3, 1);
  const at::Tensor weights = at::softmax(best, 1) * leaves[2].index({experts});
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto halves = at::mm(x, leaves[0][e].t()).chunk(2, 1);
    const at::Tensor gated =
        gate == ops::GateKind::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
    y = y + at::mm(gated * halves[1], leaves[1][e].t()) * (weights * (experts == e)).sum(1, true);
  }
  return y;
}

class PlainGradients : public testing::TestWithParam<std::tuple<ops::GateKind, bool>> {};

TEST_P(PlainGradients, EqualThoseOfTheSumOverAll) {
  const auto [gate, at_once] = GetParam();
  const AtOnce products(at_once);
  const Sizes sizes = at_once ? kAligned : Sizes{};
  const Inputs in = make_inputs(sizes);
  PlainLayer layer(sizes);
  std::vector<at::Tensor> leaves;
  for (const Parameter* p : layer.all()) leaves.push_back(reference_leaf(p->value()));
  const at::Tensor x64 = reference_leaf(in.x), logits64 = reference_leaf(in.logits);
  const at::Tensor expected = reference_of_halves(leaves, x64, logits64, gate);
  const at::Tensor dy = at::randn({kTokens, sizes.hidden});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  // The second use of the parameters adds to their gradients.
  for (int use = 1; use <= 2; ++use) {
    const at::Tensor y = layer.forward(in, gate);
    EXPECT_LT(relative_error(y, expected + in.residual.to(at::kDouble)), 1e-5);
    torch::autograd::backward({y}, {dy});
    EXPECT_LT(relative_error(in.x.grad(), x64.grad() * use), 1e-5);
    EXPECT_LT(relative_error(in.logits.grad(), logits64.grad() * use), 1e-5);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor found = gradient_of(*layer.all()[i]);
      EXPECT_LT(relative_error(found, leaves[i].grad() * use), 1e-5) << layer.all()[i]->name();
      EXPECT_EQ(found[kExperts - 1].count_nonzero().item<int64_t>(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, PlainGradients,
                         testing::Combine(testing::Values(ops::GateKind::kSilu,
                                                          ops::GateKind::kGeluTanh),
                                          testing::Bool()));

// Of so many choices that libtorch would add by several threads at once.
TEST(ScaledByExpert, AddsInOneOrder) {
  constexpr int64_t kMany = 16384, kFew = 8;
  at::manual_seed(5);
  Parameter scales("scales", {kFew}, at::kFloat);
  give_memory(scales);
  const at::Tensor logits = at::randn({kMany, kFew}), dy = at::randn({kMany, 4});
  const auto gradient = [&] {
    scales.attach_grad(at::full({kFew}, std::nan("")), /*overwrite=*/true);
    const Routing routing =
        route(logits.detach().requires_grad_(), {.experts_per_token = 4, .normalizes = true}, {});
    torch::autograd::backward({scaled_by_expert(routing, scales).weights}, {dy});
    return gradient_of(scales).clone();
  };
  const at::Tensor first = gradient();
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(at::equal(gradient(), first));
}

}  // namespace
}  // namespace strata::nn
