// Oracle: the rule token by token, document by document, in fp64, and autograd's gradients of that.
#include "strata/nn/linear_attention/gated_delta_rule.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata::nn {
namespace {

struct Inputs {
  at::Tensor qkv, g, beta;
};

Inputs random_inputs(int64_t num_tokens, const DeltaShape& s, double forgetting = 0.3) {
  const at::Tensor qkv = at::randn({num_tokens, 2 * s.key_channels() + s.value_channels()});
  return {qkv, at::rand({num_tokens, s.num_value_heads}) * -forgetting,
          at::rand({num_tokens, s.num_value_heads})};
}

at::Tensor unit(const at::Tensor& x) {
  return x / ((x * x).sum(at::IntArrayRef{-1}, /*keepdim=*/true) + 1e-6).sqrt();
}

at::Tensor one_document(const Inputs& in, const DeltaShape& s) {
  const int64_t ratio = s.num_value_heads / s.num_key_heads, num_tokens = in.qkv.size(0);
  const auto keys = [&](int64_t begin) {
    return unit(in.qkv.narrow(1, begin, s.key_channels())
                    .view({num_tokens, s.num_key_heads, s.key_dim})
                    .repeat_interleave(ratio, 1));
  };
  const at::Tensor q = keys(0) / std::sqrt(static_cast<double>(s.key_dim));
  const at::Tensor k = keys(s.key_channels());
  const at::Tensor v = in.qkv.narrow(1, 2 * s.key_channels(), s.value_channels())
                           .view({num_tokens, s.num_value_heads, s.value_dim});
  at::Tensor state = at::zeros({s.num_value_heads, s.key_dim, s.value_dim}, in.qkv.options());
  std::vector<at::Tensor> outs;
  for (int64_t t = 0; t < num_tokens; ++t) {
    state = state * in.g[t].exp().view({-1, 1, 1});
    const at::Tensor known = (state * k[t].unsqueeze(-1)).sum(1);
    const at::Tensor delta = (v[t] - known) * in.beta[t].unsqueeze(-1);
    state = state + k[t].unsqueeze(-1) * delta.unsqueeze(1);
    outs.push_back((state * q[t].unsqueeze(-1)).sum(1).flatten());
  }
  return at::stack(outs);
}

at::Tensor token_by_token(const Inputs& in, const DeltaShape& s,
                          const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> outs;
  for (size_t d = 1; d < offsets.size(); ++d) {
    const int64_t begin = offsets[d - 1], count = offsets[d] - begin;
    if (count == 0) continue;
    outs.push_back(one_document({in.qkv.narrow(0, begin, count), in.g.narrow(0, begin, count),
                                 in.beta.narrow(0, begin, count)},
                                s));
  }
  return at::cat(outs);
}

// Relative, of tensors that are nearly zero (the gradient of a rate that forgets all) absolute.
double error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = found.to(at::kDouble);
  return (wide - expected).norm().item<double>() / (expected.norm().item<double>() + 0.1);
}

struct Results {
  at::Tensor out;
  std::vector<at::Tensor> gradients;
};

template <typename Run>
Results differentiate(const Inputs& in, at::ScalarType type, const at::Tensor& dout,
                      const Run& run) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {in.qkv, in.g, in.beta}) {
    leaves.push_back(x.to(type).detach().clone().requires_grad_());
  }
  const at::Tensor out = run(Inputs{leaves[0], leaves[1], leaves[2]});
  return {out, torch::autograd::grad({out}, leaves, {dout.to(type)})};
}

constexpr double kLimit = 5e-6;

void expect_rule(const DeltaShape& s, const std::vector<int64_t>& offsets,
                 double forgetting = 0.3) {
  at::manual_seed(3);
  const Inputs in = random_inputs(offsets.back(), s, forgetting);
  const at::Tensor dout = at::randn({offsets.back(), s.value_channels()});
  const DocumentLanes lanes = make_lanes(offsets, at::kCPU);
  const Results found = differentiate(in, at::kFloat, dout, [&](const Inputs& x) {
    return gated_delta_rule(x.qkv, x.g, x.beta, s, lanes);
  });
  const Results expected = differentiate(
      in, at::kDouble, dout, [&](const Inputs& x) { return token_by_token(x, s, offsets); });
  EXPECT_LT(error(found.out, expected.out), kLimit);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(error(found.gradients[i], expected.gradients[i]), kLimit) << i;
  }
}

TEST(GatedDeltaRule, EqualsTheRuleTokenByToken) {
  expect_rule({.num_key_heads = 2, .num_value_heads = 4, .key_dim = 6, .value_dim = 10},
              {0, 5, 6, 29});
}

TEST(GatedDeltaRule, OverChunksAndLanesOfSeveralDocuments) {
  const std::vector<int64_t> offsets{0, 70, 71, 221, 285, 285, 350, 353};
  expect_rule({.num_key_heads = 1, .num_value_heads = 3, .key_dim = 8, .value_dim = 5}, offsets);
}

TEST(GatedDeltaRule, OneToken) {
  expect_rule({.num_key_heads = 1, .num_value_heads = 1, .key_dim = 4, .value_dim = 1}, {0, 1});
}

TEST(GatedDeltaRule, ForgetsAtOnceAndNever) {
  const DeltaShape s{.num_key_heads = 2, .num_value_heads = 2, .key_dim = 4, .value_dim = 4};
  expect_rule(s, {0, 100}, /*forgetting=*/60);
  expect_rule(s, {0, 100}, /*forgetting=*/0);
}

// Keys that are all the same and written whole: powers of the matrix that is inverted would have
// entries of 1e18.
TEST(GatedDeltaRule, IsStableWithEqualKeys) {
  const DeltaShape s{.num_key_heads = 1, .num_value_heads = 1, .key_dim = 4, .value_dim = 3};
  Inputs in = random_inputs(64, s);
  in.qkv.narrow(1, s.key_channels(), s.key_channels()).fill_(0.7);
  in.g.zero_();
  in.beta.fill_(1);
  const at::Tensor found =
      gated_delta_rule(in.qkv, in.g, in.beta, s, make_lanes({0, 64}, at::kCPU));
  const at::Tensor expected = token_by_token(
      {in.qkv.to(at::kDouble), in.g.to(at::kDouble), in.beta.to(at::kDouble)}, s, {0, 64});
  EXPECT_LT(error(found, expected), 1e-5);
}

// Oracle: the whole text at once.
TEST(GatedDeltaRule, GoesOnFromAState) {
  const DeltaShape s{.num_key_heads = 2, .num_value_heads = 4, .key_dim = 5, .value_dim = 6};
  const Inputs in = random_inputs(150, s);
  const at::Tensor whole =
      gated_delta_rule(in.qkv, in.g, in.beta, s, make_lanes({0, 150}, at::kCPU));
  at::Tensor state;
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : {90, 1, 1, 58}) {
    parts.push_back(gated_delta_rule_after(state, in.qkv.narrow(0, begin, count),
                                           in.g.narrow(0, begin, count),
                                           in.beta.narrow(0, begin, count), s));
    begin += count;
  }
  EXPECT_LT(error(at::cat(parts), whole.to(at::kDouble)), 1e-5);
}

TEST(DocumentLanes, HoldEveryTokenOnce) {
  const std::vector<int64_t> offsets{0, 70, 71, 221, 285, 285, 350, 353};
  const DocumentLanes lanes = make_lanes(offsets, at::kCPU);
  EXPECT_EQ(lanes.chunk_size, 64);
  EXPECT_EQ(lanes.num_chunks, 3);  // of the longest
  EXPECT_EQ(lanes.num_lanes, 4);   // 3, 2 + 1, 2 + 1, 1 chunks
  const at::Tensor found = lanes.source.index_select(0, lanes.place);
  EXPECT_TRUE(at::equal(found, at::arange(353)));
  EXPECT_EQ((lanes.source == 353).sum().item<int64_t>(), lanes.num_places() - 353);
}

// Oracle: the inverse times what was inverted.
TEST(UnitLowerInverse, IsTheInverse) {
  const at::Tensor a = at::randn({3, 2, 32, 32}).mul_(0.2).tril_(-1);
  const at::Tensor product = at::matmul(unit_lower_inverse(a), at::eye(32) + a);
  EXPECT_LT((product - at::eye(32)).abs().max().item<float>(), 1e-4);
}

}  // namespace
}  // namespace strata::nn
