// Oracle: ATen's autograd in double precision; for the cache, attention over the whole document.
#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/base/error.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/embedding.h"
#include "strata/nn/gated_mlp.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/norm.h"
#include "strata/nn/virtual_tokens.h"

namespace strata::nn {
namespace {

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + eps) * weight;
}

TEST(RmsNorm, BothBranchesOfTheResidual) {
  at::manual_seed(1);
  RmsNorm norm("norm", 8, 1e-5, at::kFloat);
  give_memory(norm.weight());
  const at::Tensor x = at::randn({5, 8}).requires_grad_(true);
  const at::Tensor x64 = reference_leaf(x), w64 = reference_leaf(norm.weight().value());
  const auto [normed, residual] = norm.forward_with_residual(x);
  const at::Tensor expected = reference_norm(x64, w64, 1e-5);
  EXPECT_LT(relative_error(normed.value, expected), 1e-6);
  EXPECT_TRUE(at::equal(normed.remake(), normed.value));
  const at::Tensor a = at::randn({5, 8}), b = at::randn({5, 8});
  torch::autograd::backward({normed.value, residual}, {a, b});
  torch::autograd::backward({expected, x64 * 1.0}, {a.to(at::kDouble), b.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(norm.weight()), w64.grad()), 1e-5);
}

TEST(RmsNorm, GemmaWeightsAreDistancesFromOne) {
  at::manual_seed(1);
  RmsNorm norm("norm", 8, 1e-5, at::kFloat, ops::RmsNormKind::kGemma);
  give_memory(norm.weight());
  const at::Tensor x = at::randn({5, 8}).requires_grad_(true);
  const at::Tensor x64 = reference_leaf(x), w64 = reference_leaf(norm.weight().value());
  const auto [normed, residual] = norm.forward_with_residual(x);
  const at::Tensor expected = reference_norm(x64, 1.0 + w64, 1e-5);
  EXPECT_LT(relative_error(normed.value, expected), 1e-6);
  EXPECT_TRUE(at::equal(normed.remake(), normed.value));
  const at::Tensor a = at::randn({5, 8}), b = at::randn({5, 8});
  torch::autograd::backward({normed.value, residual}, {a, b});
  torch::autograd::backward({expected, x64 * 1.0}, {a.to(at::kDouble), b.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(norm.weight()), w64.grad()), 1e-5);
}

TEST(RmsNorm, PlainForward) {
  at::manual_seed(2);
  RmsNorm norm("norm", 8, 1e-5, at::kFloat);
  give_memory(norm.weight());
  norm.weight().set_requires_grad(false);
  const at::Tensor x = at::randn({5, 8}).requires_grad_(true), x64 = reference_leaf(x);
  const at::Tensor expected = reference_norm(x64, norm.weight().value().to(at::kDouble), 1e-5);
  torch::autograd::backward({norm.forward(x)}, {at::ones({5, 8})});
  torch::autograd::backward({expected}, {at::ones({5, 8}, at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_TRUE(at::isnan(gradient_of(norm.weight())).all().item<bool>());
}

// Three heads a token, each by itself.
TEST(RmsNorm, RowsOfSeveralHeads) {
  at::manual_seed(3);
  RmsNorm norm("norm", 8, 1e-5, at::kFloat);
  give_memory(norm.weight());
  const at::Tensor x = at::randn({5, 24}).requires_grad_(true), dy = at::randn({5, 24});
  const at::Tensor x64 = reference_leaf(x), w64 = reference_leaf(norm.weight().value());
  const auto [y, remake] = norm.forward_remakable(x);
  const at::Tensor expected = reference_norm(x64.view({5, 3, 8}), w64, 1e-5).view({5, 24});
  EXPECT_TRUE(at::equal(remake(), y));
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_LT(relative_error(y, expected), 1e-6);
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(norm.weight()), w64.grad()), 1e-5);
  EXPECT_THROW(norm.forward(at::randn({5, 12})), InternalError);
}

TEST(LayerNorm, BothBranchesOfTheResidual) {
  at::manual_seed(1);
  LayerNorm norm("norm", 8, 1e-5, at::kFloat);
  std::vector<Parameter*> parameters;
  norm.append_parameters(parameters);
  for (Parameter* parameter : parameters) give_memory(*parameter);
  const at::Tensor x = at::randn({5, 8}).requires_grad_(true), x64 = reference_leaf(x);
  const at::Tensor w64 = reference_leaf(parameters[0]->value());
  const at::Tensor b64 = reference_leaf(parameters[1]->value());
  const auto [normed, residual] = norm.forward_with_residual(x);
  const at::Tensor expected = at::layer_norm(x64, {8}, w64, b64, 1e-5);
  EXPECT_LT(relative_error(normed.value, expected), 1e-6);
  EXPECT_TRUE(at::equal(normed.remake(), normed.value));
  const at::Tensor a = at::randn({5, 8}), b = at::randn({5, 8});
  torch::autograd::backward({normed.value, residual}, {a, b});
  torch::autograd::backward({expected, x64 * 1.0}, {a.to(at::kDouble), b.to(at::kDouble)});
  EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(*parameters[0]), w64.grad()), 1e-5);
  EXPECT_LT(relative_error(gradient_of(*parameters[1]), b64.grad()), 1e-5);
}

TEST(Activation, ValuesAndGradients) {
  const std::pair<Activation, at::Tensor (*)(const at::Tensor&)> kinds[] = {
      {Activation::kRelu, [](const at::Tensor& x) { return at::relu(x); }},
      {Activation::kGelu, [](const at::Tensor& x) { return at::gelu(x); }},
      {Activation::kGeluTanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {Activation::kSilu, [](const at::Tensor& x) { return at::silu(x); }}};
  for (const auto& [kind, reference] : kinds) {
    const at::Tensor x = at::randn({4, 6}).requires_grad_(true), x64 = reference_leaf(x);
    const Remakable y = activate(x * 1.0, kind);
    const at::Tensor expected = reference(x64), dy = at::randn({4, 6});
    EXPECT_LT(relative_error(y.value, expected), 1e-6);
    // Of relu the value itself is kept.
    EXPECT_EQ(static_cast<bool>(y.remake), kind != Activation::kRelu);
    if (y.remake) {
      EXPECT_TRUE(at::equal(y.remake(), y.value));
    }
    torch::autograd::backward({y.value}, {dy});
    torch::autograd::backward({expected}, {dy.to(at::kDouble)});
    EXPECT_LT(relative_error(x.grad(), x64.grad()), 1e-5);
  }
}

void check_gradients(Remakable (*gated)(const at::Tensor&, const at::Tensor&),
                     at::Tensor (*activation)(const at::Tensor&)) {
  at::manual_seed(3);
  const at::Tensor gate = at::randn({4, 6}).requires_grad_(true);
  const at::Tensor up = at::randn({4, 6}).requires_grad_(true);
  const at::Tensor g64 = reference_leaf(gate), u64 = reference_leaf(up);
  const at::Tensor g = gate * 1.0, u = up * 1.0, dy = at::randn({4, 6});
  const Remakable y = gated(g, u);
  EXPECT_TRUE(at::equal(y.remake(), y.value));
  torch::autograd::backward({y.value}, {dy});
  torch::autograd::backward({activation(g64) * u64}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(gate.grad(), g64.grad()), 1e-5);
  EXPECT_LT(relative_error(up.grad(), u64.grad()), 1e-5);
}

TEST(Swiglu, Gradients) { check_gradients(swiglu, at::silu); }

TEST(Geglu, Gradients) {
  check_gradients(geglu, [](const at::Tensor& x) { return at::gelu(x, "tanh"); });
}

TEST(Embedding, GradientWithoutThePaddingRow) {
  Parameter weight("embed", {5, 3}, at::kFloat);
  give_memory(weight);
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true);
  const at::Tensor ids = at::tensor({1, 4, 1, 2}, at::kLong);
  const at::Tensor y = embed(anchor, ids, weight, /*padding_id=*/4);
  EXPECT_TRUE(at::equal(y, weight.value().index_select(0, ids)));
  torch::autograd::backward({y}, {at::ones({4, 3})});
  const at::Tensor counts = at::tensor({0.f, 2.f, 1.f, 0.f, 0.f});
  EXPECT_TRUE(at::equal(gradient_of(weight), counts.unsqueeze(1).expand({5, 3})));
}

TEST(Embedding, FrozenAnchorGivesNoGraph) {
  Parameter weight("embed", {5, 3}, at::kFloat);
  give_memory(weight);
  EXPECT_FALSE(
      embed(at::zeros({1}), at::tensor({1}, at::kLong), weight, std::nullopt).requires_grad());
}

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kTokens = 9;

class AttentionTest : public ::testing::Test {
 protected:
  AttentionTest() { at::manual_seed(4); }
  // Against autograd in double, with the probabilities times `factors`.
  void expect_attention(const ForwardContext& context, const at::Tensor& factors);

  AttentionOptions options_{
      .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.4, .layer = 0};
  Rope rope_{RopeOptions{.theta = 100.0, .head_dim = kDim, .max_position_embeddings = 32}};
  at::Tensor q_ = at::randn({kTokens, kHeads* kDim});
  at::Tensor k_ = at::randn({kTokens, kKvHeads* kDim});
  at::Tensor v_ = at::randn({kTokens, kKvHeads* kDim});
};

// Half-split rotation of [T, heads, D] by positions 0, 1, ... in double precision.
at::Tensor reference_rotation(const at::Tensor& x, double theta) {
  const int64_t dim = x.size(2);
  const at::Tensor inverse =
      at::pow(theta, -at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim));
  const at::Tensor angles = at::arange(x.size(0), at::kDouble).unsqueeze(1) * inverse;
  const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor grouped(const at::Tensor& x) {
  return x.repeat_interleave(kHeads / kKvHeads, 1).transpose(0, 1);
}

// [kHeads, kTokens, kTokens] in double.
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k) {
  const at::Tensor turned_q = reference_rotation(q.view({kTokens, kHeads, kDim}), 100.0);
  const at::Tensor turned_k = reference_rotation(k.view({kTokens, kKvHeads, kDim}), 100.0);
  const at::Tensor scores =
      at::matmul(turned_q.transpose(0, 1), grouped(turned_k).transpose(1, 2)) * 0.4;
  return scores.masked_fill(at::ones({kTokens, kTokens}, at::kBool).triu(1), -1e300).softmax(-1);
}

void AttentionTest::expect_attention(const ForwardContext& context, const at::Tensor& factors) {
  std::vector<at::Tensor> leaves, leaves64;
  for (const at::Tensor& t : {q_, k_, v_}) {
    leaves.push_back(t.detach().clone().requires_grad_(true));
    leaves64.push_back(reference_leaf(t));
  }
  const at::Tensor y =
      rotary_attention(leaves[0] * 1.0, leaves[1] * 1.0, leaves[2] * 1.0, rope_, options_, context);
  const at::Tensor expected = at::matmul(probabilities(leaves64[0], leaves64[1]) * factors,
                                         grouped(leaves64[2].view({kTokens, kKvHeads, kDim})))
                                  .transpose(0, 1)
                                  .reshape({kTokens, kHeads * kDim});
  EXPECT_LT(relative_error(y, expected), 1e-5);
  const at::Tensor dy = at::randn(y.sizes());
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(relative_error(leaves[i].grad(), leaves64[i].grad()), 1e-5) << i;
  }
}

TEST_F(AttentionTest, RotationAndGroupedHeads) {
  Batch batch{.positions = at::arange(kTokens), .offsets = {0, kTokens}};
  expect_attention({.batch = &batch}, at::ones({1}, at::kDouble));
}

// What is dropped shows where the values of one token are 1 and all others 0.
TEST_F(AttentionTest, DropsProbabilitiesWhileTraining) {
  Batch batch{.positions = at::arange(kTokens), .offsets = {0, kTokens}};
  batch.token_keys = at::arange(100, 100 + kTokens);
  ForwardContext context{.batch = &batch, .training = true};
  options_.dropout = 0.3;
  options_.place_id = 5;
  at::Tensor dropped = at::zeros({kHeads, kTokens, kTokens}, at::kDouble);
  for (int64_t key = 0; key < kTokens; ++key) {
    at::Tensor v = at::zeros({kTokens, kKvHeads * kDim});
    v[key].fill_(1);
    const at::NoGradGuard guard;
    const at::Tensor y =
        rotary_attention(q_.clone(), k_.clone(), v, rope_, options_, context).to(at::kDouble);
    dropped.select(2, key).copy_(y.view({kTokens, kHeads, kDim}).select(2, 0).t());
  }
  const at::Tensor all = probabilities(q_.to(at::kDouble), k_.to(at::kDouble));
  const at::Tensor kept = (dropped > all * 0.5).to(at::kDouble);
  const double share = kept.sum().item<double>() / (all > 0).sum().item<double>();
  EXPECT_GT(share, 0.5);
  EXPECT_LT(share, 0.9);
  expect_attention(context, kept / 0.7);
  context.training = false;
  expect_attention(context, at::ones({1}, at::kDouble));
}

// The second pass has other values, so that what it computed itself would show.
TEST_F(AttentionTest, ASecondPassTakesWhatTheFirstOneKept) {
  Batch batch{.positions = at::arange(kTokens), .offsets = {0, kTokens}};
  KeptAttention kept;
  const ForwardContext context{.batch = &batch, .pass = {.kept_attention = &kept}};
  const auto attend = [&](double factor) {
    return rotary_attention(q_ * factor, k_.clone(), v_ * factor, rope_, options_, context);
  };
  const at::NoGradGuard guard;
  const at::Tensor one = attend(1).clone(), two = attend(2).clone();
  EXPECT_FALSE(at::equal(one, two));
  kept.run_again();
  EXPECT_TRUE(at::equal(attend(5), one));
  EXPECT_TRUE(at::equal(attend(5), two));
  EXPECT_THROW(attend(5), InternalError);
}

TEST_F(AttentionTest, CacheGivesTheSameAsTheWholeDocument) {
  const at::NoGradGuard guard;
  Batch whole{.positions = at::arange(kTokens), .offsets = {0, kTokens}};
  const ForwardContext context{.batch = &whole};
  const at::Tensor expected =
      rotary_attention(q_.clone(), k_.clone(), v_.clone(), rope_, options_, context);
  KvCache cache(/*num_layers=*/1, /*capacity=*/kTokens);
  std::vector<at::Tensor> parts;
  for (const auto& [start, length] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 3}}) {
    Batch part{.positions = at::arange(start, start + length), .offsets = {0, length}};
    const ForwardContext step{.batch = &part, .generation = {.cache = &cache}};
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, start, length).clone(); };
    parts.push_back(rotary_attention(rows(q_), rows(k_), rows(v_), rope_, options_, step));
    cache.length += length;
  }
  EXPECT_LT(relative_error(at::cat(parts), expected), 1e-5);
  Batch extra{.positions = at::arange(1), .offsets = {0, 1}};
  const ForwardContext step{.batch = &extra, .generation = {.cache = &cache}};
  EXPECT_THROW(rotary_attention(q_.narrow(0, 0, 1).clone(), k_.narrow(0, 0, 1).clone(),
                                v_.narrow(0, 0, 1).clone(), rope_, options_, step),
               ConfigError);
}

// A rank's micro-batch may be an empty document alone.
TEST(Fronts, OfNoDocumentAreNone) {
  const at::Tensor none = at::empty({0, 4}), front = at::ones({2, 4});
  const at::Tensor all = with_front(none, front, {0});
  EXPECT_EQ(all.sizes(), none.sizes());
  const Split parts = split_front(all, front.size(0), {0});
  EXPECT_EQ(parts.rows.sizes(), none.sizes());
  EXPECT_TRUE(at::equal(parts.front, at::zeros({2, 4})));
}

}  // namespace
}  // namespace strata::nn
