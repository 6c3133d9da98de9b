// Oracle: the rule token by token, document by document, in fp64, and autograd's gradients of that.
#include "strata/nn/linear_attention/state_space.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata::nn {
namespace {

struct Inputs {
  at::Tensor xbc, steps, log_rate, skip;
};

Inputs random_inputs(int64_t num_tokens, const StateSpaceShape& s, double rate) {
  return {at::randn({num_tokens, s.channels() + 2 * s.group_channels()}),
          at::rand({num_tokens, s.num_heads}), at::rand({s.num_heads}).mul_(rate).log_(),
          at::randn({s.num_heads})};
}

at::Tensor one_document(const Inputs& in, const StateSpaceShape& s, int64_t begin, int64_t count) {
  const at::Tensor rate = in.log_rate.exp().neg();
  at::Tensor state = at::zeros({s.num_heads, s.state_dim, s.head_dim}, in.xbc.options());
  std::vector<at::Tensor> outs;
  for (int64_t t = begin; t < begin + count; ++t) {
    const auto parts =
        in.xbc[t].split_with_sizes({s.channels(), s.group_channels(), s.group_channels()});
    const auto of_heads = [&](const at::Tensor& x) {
      return x.view({s.num_groups, s.state_dim}).repeat_interleave(s.heads_of_group(), 0);
    };
    const at::Tensor x = parts[0].view({s.num_heads, s.head_dim}), step = in.steps[t];
    state = state * (step * rate).exp().view({-1, 1, 1}) +
            of_heads(parts[1]).unsqueeze(-1) * (x * step.unsqueeze(-1)).unsqueeze(1);
    const at::Tensor y = (state * of_heads(parts[2]).unsqueeze(-1)).sum(1);
    outs.push_back((y + x * in.skip.unsqueeze(-1)).flatten());
  }
  return at::stack(outs);
}

at::Tensor token_by_token(const Inputs& in, const StateSpaceShape& s,
                          const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> outs;
  for (size_t d = 1; d < offsets.size(); ++d) {
    const int64_t count = offsets[d] - offsets[d - 1];
    if (count > 0) outs.push_back(one_document(in, s, offsets[d - 1], count));
  }
  return at::cat(outs);
}

double error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = found.to(at::kDouble);
  return (wide - expected).norm().item<double>() / (expected.norm().item<double>() + 0.1);
}

void give(Parameter& parameter, const at::Tensor& value, const at::Tensor& gradient) {
  parameter.attach_value(value);
  parameter.attach_grad(gradient, /*overwrite=*/true);
}

struct Rule {
  double rate = 0.3;  // at most, of a step of 1
  double limit = 5e-6;
  int64_t num_seen = 0;  // first tokens that are compared, of one document; 0: all
};

using MakeLanes = DocumentLanes (*)(const std::vector<int64_t>& offsets, at::Device device);

void expect_rule_in(MakeLanes make, const StateSpaceShape& s, std::vector<int64_t> offsets,
                    const Rule& rule) {
  at::manual_seed(3);
  const int64_t num_tokens = offsets.back();
  const int64_t num_seen = rule.num_seen > 0 ? rule.num_seen : num_tokens;
  const Inputs in = random_inputs(num_tokens, s, rule.rate);
  const at::Tensor dout = at::randn({num_tokens, s.channels()});
  dout.narrow(0, num_seen, num_tokens - num_seen).zero_();
  Parameter log_rate("A_log", {s.num_heads}, at::kFloat), skip("D", {s.num_heads}, at::kFloat);
  const at::Tensor drate = at::empty({s.num_heads}), dskip = at::empty({s.num_heads});
  give(log_rate, in.log_rate, drate);
  give(skip, in.skip, dskip);
  const at::Tensor xbc = in.xbc.clone().requires_grad_(), steps = in.steps.clone().requires_grad_();
  const at::Tensor out = state_space(xbc, steps, {&log_rate, &skip}, s, make(offsets, at::kCPU));
  auto found = torch::autograd::grad({out}, {xbc, steps}, {dout});
  found.insert(found.end(), {drate, dskip});

  const auto seen = [&](const at::Tensor& x) { return x.narrow(0, 0, num_seen); };
  if (rule.num_seen > 0) offsets = {0, num_seen};
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {seen(in.xbc), seen(in.steps), in.log_rate, in.skip}) {
    leaves.push_back(x.to(at::kDouble).requires_grad_());
  }
  const at::Tensor expected =
      token_by_token({leaves[0], leaves[1], leaves[2], leaves[3]}, s, offsets);
  const auto gradients = torch::autograd::grad({expected}, leaves, {seen(dout).to(at::kDouble)});
  EXPECT_LT(error(seen(out), expected), rule.limit);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor of_seen = i < 2 ? seen(found[i]) : found[i];
    EXPECT_LT(error(of_seen, gradients[i]), rule.limit) << i;
  }
}

void expect_rule(const StateSpaceShape& s, const std::vector<int64_t>& offsets,
                 const Rule& rule = {}) {
  for (const MakeLanes make : {make_lanes, make_packed_lanes})
    expect_rule_in(make, s, offsets, rule);
}

TEST(StateSpace, EqualsTheRuleTokenByToken) {
  expect_rule({.num_heads = 4, .head_dim = 6, .num_groups = 2, .state_dim = 10}, {0, 5, 6, 29});
}

TEST(StateSpace, OverChunksAndLanesOfSeveralDocuments) {
  expect_rule({.num_heads = 3, .head_dim = 5, .num_groups = 1, .state_dim = 8},
              {0, 70, 71, 221, 285, 285, 350, 353});
}

TEST(StateSpace, OverDocumentsThatShareChunks) {
  const StateSpaceShape s{.num_heads = 2, .head_dim = 5, .num_groups = 1, .state_dim = 8};
  // Ends with chunks, of one token, across several chunks, and many of a few tokens.
  std::vector<int64_t> offsets{0, 64, 65, 128, 129, 400, 400, 464};
  for (int i = 0; i < 40; ++i) offsets.push_back(offsets.back() + 1 + i % 13);
  expect_rule(s, offsets);
}

TEST(StateSpace, PackedLanesHoldLittleElse) {
  const auto places = [](const std::vector<int64_t>& lengths, int64_t num_chunks) {
    std::vector<int64_t> offsets{0};
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    const DocumentLanes lanes = make_packed_lanes(offsets, at::kCPU);
    EXPECT_EQ(lanes.chunk_size, 64);
    EXPECT_EQ(lanes.num_chunks, num_chunks);
    return static_cast<double>(lanes.num_places()) / static_cast<double>(offsets.back());
  };
  EXPECT_LT(places(std::vector<int64_t>(102, 20), 11), 1.04);
  EXPECT_LT(places(std::vector<int64_t>(31, 66), 12), 1.13);
  std::vector<int64_t> mixed(62, 25);
  mixed.push_back(1000);
  EXPECT_LT(places(mixed, 20), 1.01);
  EXPECT_EQ(places({2048}, 32), 1);
}

// Tasks of three heads, of which the last of a group has fewer.
TEST(StateSpace, SeveralHeadsOfAGroup) {
  expect_rule({.num_heads = 17, .head_dim = 5, .num_groups = 1, .state_dim = 18}, {0, 70, 71, 221});
  expect_rule({.num_heads = 18, .head_dim = 3, .num_groups = 2, .state_dim = 4}, {0, 70, 71});
}

TEST(StateSpace, OneTokenOfOneHead) {
  expect_rule({.num_heads = 1, .head_dim = 1, .num_groups = 1, .state_dim = 3}, {0, 1});
}

TEST(StateSpace, ForgetsAtOnce) {
  expect_rule({.num_heads = 2, .head_dim = 4, .num_groups = 2, .state_dim = 4}, {0, 150},
              {.rate = 60});
}

// Of documents so long that heads of a group are computed one after the other by libtorch's
// operations, and give B and C their gradients by turns. (Those compute where documents share a
// lane.)
TEST(StateSpace, HeadsOneByOne) {
  expect_rule_in(make_packed_lanes,
                 {.num_heads = 2, .head_dim = 256, .num_groups = 1, .state_dim = 256},
                 {0, 6100, 6200}, {.num_seen = 70});
}

// Oracle: the whole text at once.
TEST(StateSpace, GoesOnFromAState) {
  const StateSpaceShape s{.num_heads = 4, .head_dim = 5, .num_groups = 2, .state_dim = 6};
  const Inputs in = random_inputs(150, s, 0.3);
  Parameter log_rate("A_log", {4}, at::kFloat), skip("D", {4}, at::kFloat);
  log_rate.attach_value(in.log_rate);
  skip.attach_value(in.skip);
  const StateSpaceWeights weights{&log_rate, &skip};
  const at::Tensor whole =
      state_space(in.xbc, in.steps, weights, s, make_lanes({0, 150}, at::kCPU));
  at::Tensor state;
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : {90, 1, 1, 58}) {
    parts.push_back(state_space_after(state, in.xbc.narrow(0, begin, count),
                                      in.steps.narrow(0, begin, count), weights, s));
    begin += count;
  }
  EXPECT_LT(error(at::cat(parts), whole.to(at::kDouble)), 1e-5);
}

}  // namespace
}  // namespace strata::nn
