// Oracle: the norm and the rotation one after the other, which have tests of their own, to the bit;
// finite differences are in the table of ops.
#include "strata/nn/attention/turned_norms.h"

#include <gtest/gtest.h>

#include "gathered.h"
#include "strata/nn/attention/rotated.h"

namespace strata::nn {
namespace {

constexpr int64_t kChannels = 16;

struct Norms {
  explicit Norms(int64_t channels)
      : q("q_norm", channels, 1e-6, at::kFloat, ops::RmsNormKind::kGemma),
        k("k_norm", channels, 1e-6, at::kFloat, ops::RmsNormKind::kGemma) {
    give_memory(q.weight());
    give_memory(k.weight());
  }
  HeadNorms both() { return {q, k}; }
  RmsNorm q, k;
};

struct Inputs {
  at::Tensor q = at::randn({5, 4 * kChannels}).requires_grad_(true);
  at::Tensor k = at::randn({5, 2 * kChannels}).requires_grad_(true);
  at::Tensor dq = at::randn({5, 4 * kChannels}), dk = at::randn({5, 2 * kChannels});
  Batch batch{.ids = at::zeros({5}, at::kLong),
              .positions = at::tensor({0, 1, 2, 0, 1}, at::kLong)};
  ForwardContext context{.batch = &batch};
};

// Gradients of inputs and weights where outputs have those of `in`.
std::vector<at::Tensor> gradients(const Inputs& in, Norms& norms, const at::Tensor& q,
                                  const at::Tensor& k) {
  torch::autograd::backward({q, k}, {in.dq, in.dk});
  std::vector<at::Tensor> list{in.q.grad().clone(), in.k.grad().clone(),
                               gradient_of(norms.q.weight()).clone(),
                               gradient_of(norms.k.weight()).clone()};
  in.q.mutable_grad().reset();
  in.k.mutable_grad().reset();
  return list;
}

TEST(TurnedNorms, AreNormsThatTurn) {
  at::manual_seed(5);
  Inputs in;
  Norms norms(kChannels), apart(kChannels);
  apart.q.weight().attach_value(norms.q.weight().value());
  apart.k.weight().attach_value(norms.k.weight().value());
  Rope rope(RopeOptions{.theta = 100.0, .head_dim = kChannels});
  at::Tensor q = in.q * 1.0, k = in.k * 1.0;
  ASSERT_TRUE(norm_and_turn(norms.both(), q, k, &rope, in.context));
  const RopeTables tables = rope_tables(rope, in.context);
  const at::Tensor one = rotated(apart.q.forward(in.q * 1.0), 4, tables);
  const at::Tensor other = rotated(apart.k.forward(in.k * 1.0), 2, tables);
  EXPECT_TRUE(at::equal(q, one));
  EXPECT_TRUE(at::equal(k, other));
  const auto found = gradients(in, norms, q, k), expected = gradients(in, apart, one, other);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

// Frozen weights get nothing, and a second use of one that trains adds.
TEST(TurnedNorms, WeightsThatTrainOrDoNot) {
  at::manual_seed(6);
  Inputs in;
  Norms norms(kChannels);
  norms.k.weight().set_requires_grad(false);
  Rope rope(RopeOptions{.theta = 100.0, .head_dim = kChannels});
  std::vector<at::Tensor> made;
  for (int use = 0; use < 2; ++use) {
    at::Tensor q = in.q * 1.0, k = in.k * 1.0;
    ASSERT_TRUE(norm_and_turn(norms.both(), q, k, &rope, in.context));
    made.push_back(gradients(in, norms, q, k)[2]);
  }
  EXPECT_LT(relative_error(made[1], 2 * made[0]), 1e-6);
  EXPECT_TRUE(at::isnan(gradient_of(norms.k.weight())).all().item<bool>());
}

// Part of a head, neighbours, norms of whole rows, no rotation at all: whoever attends turns.
TEST(TurnedNorms, OthersAreLeftToAttention) {
  at::manual_seed(7);
  Inputs in;
  Norms norms(kChannels), of_rows(2 * kChannels);
  Rope part(RopeOptions{.theta = 100.0, .head_dim = kChannels / 2});
  Rope neighbours(
      RopeOptions{.theta = 100.0, .head_dim = kChannels, .pairs = ops::RopePairs::kNeighbours});
  Rope whole(RopeOptions{.theta = 100.0, .head_dim = kChannels});
  const auto expect_norm = [&](Norms& of, Rope* rope) {
    at::Tensor q = in.q * 1.0, k = in.k * 1.0;
    EXPECT_FALSE(norm_and_turn(of.both(), q, k, rope, in.context));
    EXPECT_TRUE(at::equal(q, of.q.forward(in.q * 1.0)));
    EXPECT_TRUE(at::equal(k, of.k.forward(in.k * 1.0)));
  };
  expect_norm(norms, &part);
  expect_norm(norms, &neighbours);
  expect_norm(norms, nullptr);
  expect_norm(of_rows, &whole);
}

}  // namespace
}  // namespace strata::nn
