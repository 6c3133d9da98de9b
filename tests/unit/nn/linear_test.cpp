// Oracle: ATen's autograd in double precision over the same formula.
#include "strata/nn/linear.h"
#include "strata/nn/dropout.h"

#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/base/error.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/scaled_add.h"
#include "strata/ops/dropout.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 11, kIn = 6, kOut = 5, kRank = 3;

class LinearTest : public ::testing::Test {
 protected:
  LinearTest() {
    at::manual_seed(0);
    batch_.token_keys = at::arange(kTokens) * 7 + 3;
    context_.batch = &batch_;
    context_.training = true;
    context_.draw = {.seed = 5, .step = 6, .micro_step = 7};
  }

  static std::unique_ptr<Linear> make(const std::string& path, bool bias, bool branch,
                                      double dropout = 0.0, int64_t rank = kRank) {
    auto layer = std::make_unique<Linear>(
        path, Linear::Options{
                  .in_features = kIn, .out_features = kOut, .bias = bias, .storage = at::kFloat});
    if (branch) {
      layer->attach_low_rank(std::unique_ptr<LowRankBranch>(
          new LowRankBranch{.a = {path + ".a", {rank, kIn}, at::kFloat},
                            .b = {path + ".b", {kOut, rank}, at::kFloat},
                            .scaling = 1.7,
                            .dropout = dropout,
                            .layer_id = 4}));
    }
    std::vector<Parameter*> parameters;
    layer->append_parameters(parameters);
    for (Parameter* p : parameters) give_memory(*p);
    return layer;
  }

  // The layer's formula over double-precision leaves, which receive the expected gradients.
  struct Reference {
    at::Tensor y;
    std::vector<std::pair<Parameter*, at::Tensor>> leaves;
  };
  Reference reference(const Linear& layer, const at::Tensor& x) const {
    Reference r;
    const auto leaf = [&](Parameter& p) {
      r.leaves.emplace_back(&p, reference_leaf(p.value()));
      return r.leaves.back().second;
    };
    r.y = at::mm(x, leaf(layer.weight()).t());
    if (layer.bias() != nullptr) r.y = r.y + leaf(*layer.bias());
    if (LowRankBranch* branch = layer.low_rank()) {
      at::Tensor input = x;
      if (branch->dropout > 0) {
        input = x * ops::dropout(at::ones({kTokens, kIn}), branch->dropout, batch_.token_keys,
                                 dropout_key(context_.draw, branch->layer_id));
      }
      const at::Tensor a = leaf(branch->a), b = leaf(branch->b);
      r.y = r.y + at::mm(at::mm(input, a.t()), b.t()) * branch->scaling;
    }
    return r;
  }

  static void expect_gradients(const Reference& r) {
    for (const auto& [parameter, leaf] : r.leaves) {
      if (!parameter->requires_grad()) continue;
      EXPECT_LT(relative_error(gradient_of(*parameter), leaf.grad()), 1e-5) << parameter->name();
    }
  }

  Batch batch_;
  ForwardContext context_;
};

// Branches whose inputs are one are computed together, others by themselves.
struct SharedInput {
  double dropout;
  bool lies_together;  // the factors A, as in a unit of the engine
};
class SharedInputTest : public LinearTest, public ::testing::WithParamInterface<SharedInput> {
 protected:
  static void lie_together(const std::vector<Parameter*>& factors) {
    int64_t numel = 0;
    for (const Parameter* factor : factors) numel += factor->numel();
    const at::Tensor values = at::empty({numel}), gradients = at::full({numel}, std::nan(""));
    int64_t begin = 0;
    for (Parameter* factor : factors) {
      const auto own = [&](const at::Tensor& all) { return all.narrow(0, begin, factor->numel()); };
      own(values).copy_(factor->value().flatten());
      factor->attach_value(own(values));
      factor->attach_grad(own(gradients), /*overwrite=*/true);
      begin += factor->numel();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Inputs, SharedInputTest,
                         ::testing::Values(SharedInput{0.0, false}, SharedInput{0.0, true},
                                           SharedInput{0.4, false}, SharedInput{0.4, true}));

TEST_P(SharedInputTest, EqualsTheLayersByThemselves) {
  const auto q = make("q", /*bias=*/true, /*branch=*/true, /*dropout=*/GetParam().dropout);
  const auto k = make("k", /*bias=*/false, /*branch=*/false);
  const auto v = make("v", /*bias=*/false, /*branch=*/true, /*dropout=*/0.0, /*rank=*/kRank + 2);
  if (GetParam().lies_together) lie_together({&q->low_rank()->a, &v->low_rank()->a});
  const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
  const auto outputs = linear_shared_input({q.get(), k.get(), v.get()}, x, context_);
  const at::Tensor x64 = reference_leaf(x);
  std::vector<at::Tensor> gradients, gradients64, outputs64;
  std::vector<Reference> references;
  for (const Linear* layer : {q.get(), k.get(), v.get()}) {
    references.push_back(reference(*layer, x64));
    outputs64.push_back(references.back().y);
    gradients.push_back(at::randn({kTokens, kOut}));
    gradients64.push_back(gradients.back().to(at::kDouble));
    EXPECT_LT(relative_error(outputs[gradients.size() - 1], outputs64.back()), 1e-6);
  }
  torch::autograd::backward(outputs, gradients);
  torch::autograd::backward(outputs64, gradients64);
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  for (const Reference& r : references) expect_gradients(r);

  // Gradients that are there already, and a frozen A beside one that trains.
  for (const Reference& r : references) {
    for (const auto& [parameter, leaf] : r.leaves) {
      parameter->attach_grad(gradient_of(*parameter), /*overwrite=*/false);
    }
  }
  torch::autograd::backward(linear_shared_input({q.get(), k.get(), v.get()}, x, context_),
                            gradients);
  EXPECT_LT(
      relative_error(gradient_of(q->low_rank()->a), 2 * references[0].leaves[2].second.grad()),
      1e-5);
  q->low_rank()->a.set_requires_grad(false);
  const at::Tensor frozen = gradient_of(q->low_rank()->a).clone();
  torch::autograd::backward(linear_shared_input({q.get(), k.get(), v.get()}, x, context_),
                            gradients);
  EXPECT_TRUE(at::equal(gradient_of(q->low_rank()->a), frozen));
  EXPECT_LT(relative_error(x.grad(), 3 * x64.grad()), 1e-5);
  EXPECT_LT(
      relative_error(gradient_of(v->low_rank()->a), 3 * references[2].leaves[1].second.grad()),
      1e-5);
}

// Oracle: PEFT's tuners/lora/dora.py in double precision: the base's term is made again of what
// dropout left, and the lengths of the rows have no gradient.
TEST_F(LinearTest, DoraOfADroppedInput) {
  const auto layer = make("dora", /*bias=*/true, /*branch=*/true, /*dropout=*/0.4);
  layer->weight().set_requires_grad(false);
  layer->bias()->set_requires_grad(false);
  LowRankBranch& branch = *layer->low_rank();
  branch.magnitude.reset(new Parameter("dora.m", {kOut}, at::kFloat));
  give_memory(*branch.magnitude);
  const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true), x64 = reference_leaf(x);
  const at::Tensor w = layer->weight().value().to(at::kDouble);
  const at::Tensor a = reference_leaf(branch.a.value()), b = reference_leaf(branch.b.value());
  const at::Tensor m = reference_leaf(branch.magnitude->value());
  const at::Tensor kept = x64 * ops::dropout(at::ones({kTokens, kIn}), 0.4, batch_.token_keys,
                                             dropout_key(context_.draw, branch.layer_id));
  const at::Tensor norms = (w + at::mm(b, a) * branch.scaling).detach().norm(2, {1});
  const at::Tensor share = m / norms;
  const at::Tensor expected = at::mm(x64, w.t()) + layer->bias()->value().to(at::kDouble) +
                              (share - 1) * at::mm(kept, w.t()) +
                              share * at::mm(at::mm(kept, a.t()), b.t()) * branch.scaling;
  const at::Tensor dy = at::randn({kTokens, kOut});
  const at::Tensor y = layer->forward(x, context_);
  EXPECT_LT(relative_error(y, expected), 1e-6);
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  expect_gradients({expected, {{&branch.a, a}, {&branch.b, b}, {branch.magnitude.get(), m}}});
}

// Oracle: the layer that keeps its input, to the bit.
TEST_F(LinearTest, MakesItsInputAgainInsteadOfKeepingIt) {
  const auto layer = make("down", /*bias=*/true, /*branch=*/true, /*dropout=*/0.4);
  const at::Tensor leaf = at::randn({kTokens, kIn}).requires_grad_(true), dy = at::randn({1, kOut});
  int made = 0;
  const auto gradients = [&](bool remakes) {
    const at::Tensor x = leaf * 2.0;
    context_.pass.remakes_inputs = remakes;
    const Remakable input(x, [&made, copy = x.detach().clone()] { return ++made, copy; });
    const size_t uses = x.use_count();
    const at::Tensor y = linear_shared_input({layer.get()}, input, context_)[0];
    EXPECT_EQ(x.use_count() > uses, !remakes && layer->weight().requires_grad());
    std::vector<at::Tensor> found = torch::autograd::grad({y}, {leaf}, {dy.expand_as(y)});
    std::vector<Parameter*> parameters;
    layer->append_parameters(parameters);
    for (Parameter* p : parameters) {
      found.push_back(gradient_of(*p).clone());
      p->detach_grad();
      p->attach_grad(at::zeros(p->shape()), /*overwrite=*/true);
    }
    return found;
  };
  const auto kept = gradients(false);
  EXPECT_EQ(made, 0);
  const auto remade = gradients(true);
  EXPECT_EQ(made, 1);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], remade[i])) << i;
  for (Parameter* p : {&layer->weight(), &layer->low_rank()->a, &layer->low_rank()->b}) {
    p->set_requires_grad(false);
  }
  gradients(true);
  EXPECT_EQ(made, 1) << "an input that nothing trains on";
}

TEST_F(LinearTest, ResidualIsAddedAndReceivesTheGradient) {
  const auto layer = make("o", /*bias=*/true, /*branch=*/true);
  const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
  const at::Tensor residual = at::randn({kTokens, kOut}).requires_grad_(true);
  const at::Tensor y = layer->forward_add(x, residual, context_);
  const at::Tensor x64 = reference_leaf(x);
  const Reference r = reference(*layer, x64);
  EXPECT_LT(relative_error(y, r.y + residual.to(at::kDouble)), 1e-6);
  const at::Tensor dy = at::randn({kTokens, kOut});
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({r.y}, {dy.to(at::kDouble)});
  EXPECT_TRUE(at::equal(residual.grad(), dy));
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  expect_gradients(r);
}

// The oracle is the same layer whose output is computed.
TEST_F(LinearTest, OutputThatNobodyReadsIsNotComputedAndTheGradientsAreTheSame) {
  enum Sum { kPlain, kDropped, kScaled };
  for (const auto& [branch, sum] : {std::pair{false, kPlain},
                                    {true, kPlain},
                                    {false, kDropped},
                                    {true, kDropped},
                                    {false, kScaled},
                                    {true, kScaled}}) {
    const auto layer = make("last", /*bias=*/true, branch, /*dropout=*/0.3);
    const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
    const at::Tensor residual = at::randn({kTokens, kOut}).requires_grad_(true);
    const at::Tensor dy = at::randn({kTokens, kOut});
    std::vector<Parameter*> parameters;
    layer->append_parameters(parameters);
    const auto gradients = [&](bool wants_output) {
      for (Parameter* p : parameters) p->attach_grad(at::empty(p->shape()), /*overwrite=*/true);
      ForwardContext context = context_;
      context.pass.wants_output = wants_output;
      const at::Tensor y =
          sum == kPlain ? layer->forward_add_last(x, residual, context)
          : sum == kScaled
              ? add_scaled(residual, layer->forward_last(x, context), 0.3, wants_output)
              : add_dropout(residual, layer->forward_last(x, context), 0.4,
                            /*place_id=*/7, context, wants_output);
      EXPECT_EQ(y.sizes(), dy.sizes());
      EXPECT_EQ(y.storage().nbytes(), (wants_output ? dy.numel() : 1) * sizeof(float));
      auto result = torch::autograd::grad({y}, {x, residual}, {dy});
      for (Parameter* p : parameters) result.push_back(gradient_of(*p));
      return result;
    };
    const auto expected = gradients(true), found = gradients(false);
    ASSERT_EQ(found.size(), branch ? 6u : 4u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

// The oracle is the same layer run twice. The kept sum is moved between the passes, so that one
// that was computed again would show.
TEST_F(LinearTest, KeptSumIsNotComputedAgainAndTheGradientsAreTheSame) {
  for (const bool branch : {false, true}) {
    const auto layer = make("o", /*bias=*/true, branch, /*dropout=*/0.3);
    const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
    const at::Tensor residual = at::randn({kTokens, kOut}).requires_grad_(true);
    const at::Tensor dy = at::randn({kTokens, kOut});
    std::vector<Parameter*> parameters;
    layer->append_parameters(parameters);
    const auto gradients = [&](const at::Tensor& y) {
      auto result = torch::autograd::grad({y}, {x, residual}, {dy});
      for (Parameter* p : parameters) {
        result.push_back(gradient_of(*p).clone());
        p->attach_grad(at::empty(p->shape()), /*overwrite=*/true);
      }
      return result;
    };
    const at::Tensor plain = layer->forward_add_once(x, residual, context_);
    const auto expected = gradients(plain);
    KeptAttention kept;
    ForwardContext context = context_;
    context.pass.kept_attention = &kept;
    {
      const at::NoGradGuard first_pass;
      at::Tensor sum = layer->forward_add_once(x, residual, context);
      EXPECT_TRUE(at::equal(sum, plain));
      sum.add_(1);
    }
    kept.run_again();
    const at::Tensor y = layer->forward_add_once(x, residual, context);
    EXPECT_TRUE(at::equal(y, plain + 1));
    const auto found = gradients(y);
    ASSERT_EQ(found.size(), branch ? 6u : 4u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
    EXPECT_EQ(y.use_count(), 1u) << "nobody keeps what was taken";
    EXPECT_THROW((void)layer->forward_add_once(x, residual, context), InternalError);
  }
}

// One row once shared its memory with the bias, into which the product was then added.
TEST_F(LinearTest, OneRowLeavesTheBiasAsItIs) {
  const auto layer = make("bias", /*bias=*/true, /*branch=*/false);
  const at::Tensor bias = layer->bias()->value().clone(), x = at::randn({1, kIn});
  const at::NoGradGuard no_grad;
  const at::Tensor first = layer->forward(x, context_);
  EXPECT_TRUE(at::equal(layer->bias()->value(), bias));
  EXPECT_TRUE(at::equal(layer->forward(x, context_), first));
}

TEST_F(LinearTest, FrozenLayerKeepsNoInputAndWritesNothing) {
  const auto layer = make("frozen", /*bias=*/true, /*branch=*/false);
  layer->weight().set_requires_grad(false);
  layer->bias()->set_requires_grad(false);
  const at::Tensor leaf = at::randn({kTokens, kIn}).requires_grad_(true);
  at::Tensor x = leaf * 1.0;
  const size_t before = x.use_count();
  const at::Tensor y = layer->forward(x, context_);
  EXPECT_EQ(x.use_count(), before);
  torch::autograd::backward({y}, {at::ones({kTokens, kOut})});
  EXPECT_TRUE(leaf.grad().defined());
  EXPECT_TRUE(at::isnan(gradient_of(layer->weight())).all().item<bool>());
}

TEST_F(LinearTest, FrozenBaseWithTrainingBranchWritesTheBranchOnly) {
  const auto layer = make("lora", /*bias=*/false, /*branch=*/true);
  layer->weight().set_requires_grad(false);
  const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
  const at::Tensor x64 = reference_leaf(x);
  const Reference r = reference(*layer, x64);
  torch::autograd::backward({layer->forward(x, context_)}, {at::ones({kTokens, kOut})});
  torch::autograd::backward({r.y}, {at::ones({kTokens, kOut}, at::kDouble)});
  expect_gradients(r);
  EXPECT_TRUE(at::isnan(gradient_of(layer->weight())).all().item<bool>());
}

TEST_F(LinearTest, InputWithoutGradientStillTrainsTheWeight) {
  const auto layer = make("first", /*bias=*/false, /*branch=*/false);
  const at::Tensor x = at::randn({kTokens, kIn});
  const at::Tensor residual = at::randn({kTokens, kOut}).requires_grad_(true);
  const Reference r = reference(*layer, x.to(at::kDouble));
  torch::autograd::backward({layer->forward_add(x, residual, context_)},
                            {at::ones({kTokens, kOut})});
  torch::autograd::backward({r.y}, {at::ones({kTokens, kOut}, at::kDouble)});
  expect_gradients(r);
}

TEST_F(LinearTest, BackwardReadsTheWeightAgain) {
  const auto layer = make("late", /*bias=*/false, /*branch=*/false);
  const at::Tensor x = at::randn({kTokens, kIn}).requires_grad_(true);
  const at::Tensor y = layer->forward(x, context_);
  layer->weight().detach_value();
  try {
    torch::autograd::backward({y}, {at::ones({kTokens, kOut})});
    FAIL() << "expected an error";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("late.weight"), std::string::npos);
  }
}

TEST_F(LinearTest, BranchInAnotherTypeIsCastAsPeftDoes) {
  const auto layer = make("half", /*bias=*/false, /*branch=*/true);
  const at::Tensor weight = layer->weight().value().to(at::kBFloat16);
  layer->weight().attach_value(weight);
  const at::Tensor x = at::randn({kTokens, kIn}).to(at::kBFloat16);
  const at::Tensor y = layer->forward(x, context_);
  const LowRankBranch& branch = *layer->low_rank();
  const at::Tensor low =
      at::mm(at::mm(x.to(at::kFloat), branch.a.value().t()), branch.b.value().t()) * branch.scaling;
  const at::Tensor expected = (at::mm(x, weight.t()).to(at::kFloat) + low).to(at::kBFloat16);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT(relative_error(y, expected), 4e-3);
}

// Oracle: the sum in double. In bf16 it would be off by up to 4e-3, and by another number for other
// tokens.
TEST_F(LinearTest, BiasOfABranchIsSummedInFloat) {
  LowRankBranch branch{
      .a = {"a", {kRank, kIn}, at::kFloat},
      .b = {"b", {kOut, kRank}, at::kFloat},
      .scaling = 1.7,
      .bias = std::make_unique<Parameter>("bias", std::vector<int64_t>{kOut}, at::kFloat)};
  std::vector<Parameter*> parameters;
  branch.append_parameters(parameters);
  for (Parameter* p : parameters) give_memory(*p);
  for (Parameter* p : {&branch.a, &branch.b}) p->attach_value(p->value().to(at::kBFloat16));
  const at::Tensor x = at::randn({kTokens, kIn}).to(at::kBFloat16);
  const at::Tensor dy = at::randn({kTokens, kOut}).to(at::kBFloat16);
  const at::Tensor hidden = low_rank_hidden(x, {&branch}, {});
  low_rank_backward(dy, {x, hidden}, branch, {}, at::Tensor());
  const at::Tensor expected = dy.to(at::kDouble).sum(0) * branch.scaling;
  EXPECT_LT(relative_error(gradient_of(*branch.bias), expected), 1e-6);
}

}  // namespace
}  // namespace strata::nn
