// Oracle: dense softmax from ATen's elementary operations in double, differentiated by autograd;
// for dropout the mask that ops::dropout draws. bf16 in every way in which the processor multiplies
// it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "chosen_bf16.h"
#include "reference.h"
#include "strata/base/error.h"
#include "strata/ops/attention/biased_attention.h"
#include "strata/ops/attention/dense_biased_attention.h"
#include "strata/ops/dropout.h"

namespace strata::ops {
namespace {

using Offsets = std::vector<int64_t>;
using reference::relative_error;

struct Case {
  Offsets offsets, key_offsets;
  int64_t heads, kv_heads, channels;
  bool causal = false;
  int64_t key_lead = 0;
  bool has_bias = true;
  int64_t window = 0;
  double softcap = 0;
  bool are_keys = false, are_queries = false;  // vectors of positions
};

const Case kCases[] = {
    {.offsets = {0, 1}, .key_offsets = {0, 1}, .heads = 1, .kv_heads = 1, .channels = 3},
    {.offsets = {0, 7, 8, 60},
     .key_offsets = {0, 7, 8, 60},
     .heads = 3,
     .kv_heads = 3,
     .channels = 5},
    {.offsets = {0, 7, 8, 60},
     .key_offsets = {0, 7, 8, 60},
     .heads = 3,
     .kv_heads = 3,
     .channels = 8,
     .causal = true},
    {.offsets = {0, 2, 150},
     .key_offsets = {0, 700, 703},
     .heads = 2,
     .kv_heads = 2,
     .channels = 16,
     .has_bias = false},
    {.offsets = {0, 130, 131},
     .key_offsets = {0, 4, 600},
     .heads = 4,
     .kv_heads = 2,
     .channels = 17},
    {.offsets = {0, 1, 2, 3},
     .key_offsets = {0, 9, 18, 27},
     .heads = 2,
     .kv_heads = 2,
     .channels = 4,
     .causal = true,
     .key_lead = 8},
    // As Gemma 2: capped scores, windows shorter than documents, one token, one kv head.
    {.offsets = {0, 1, 60, 400},
     .key_offsets = {0, 1, 60, 400},
     .heads = 4,
     .kv_heads = 1,
     .channels = 12,
     .causal = true,
     .has_bias = false,
     .window = 7,
     .softcap = 1.5},
    {.offsets = {0, 300, 333},
     .key_offsets = {0, 300, 333},
     .heads = 1,
     .kv_heads = 1,
     .channels = 9,
     .causal = true,
     .has_bias = false,
     .softcap = 50},
    {.offsets = {0, 3},
     .key_offsets = {0, 270},
     .heads = 2,
     .kv_heads = 1,
     .channels = 8,
     .causal = true,
     .key_lead = 267,
     .has_bias = false,
     .window = 260,
     .softcap = 2},
    // As ModernBERT: windows on both sides.
    {.offsets = {0, 1, 60, 400},
     .key_offsets = {0, 1, 60, 400},
     .heads = 2,
     .kv_heads = 2,
     .channels = 12,
     .has_bias = false,
     .window = 9},
    {.offsets = {0, 9, 30},
     .key_offsets = {0, 9, 30},
     .heads = 2,
     .kv_heads = 2,
     .channels = 4,
     .causal = true,
     .window = 5,
     .softcap = 1},
    // As DeBERTa: vectors of positions as keys, as queries, as both.
    {.offsets = {0, 7, 8, 60},
     .key_offsets = {0, 7, 8, 60},
     .heads = 3,
     .kv_heads = 3,
     .channels = 5,
     .has_bias = false,
     .are_keys = true,
     .are_queries = true},
    {.offsets = {0, 31},
     .key_offsets = {0, 31},
     .heads = 2,
     .kv_heads = 2,
     .channels = 4,
     .has_bias = false,
     .are_keys = true},
    {.offsets = {0, 3, 12},
     .key_offsets = {0, 9, 13},
     .heads = 2,
     .kv_heads = 2,
     .channels = 4,
     .causal = true,
     .key_lead = 2,
     .are_queries = true},
    // Blocks of queries and of keys, more documents than pieces of the sums.
    {.offsets = {0, 1, 3, 20, 120, 121, 125, 130, 131, 140, 421},
     .key_offsets = {0, 1, 3, 20, 120, 121, 125, 130, 131, 140, 421},
     .heads = 2,
     .kv_heads = 2,
     .channels = 17,
     .has_bias = false,
     .are_keys = true,
     .are_queries = true},
    {.offsets = {0, 98, 100},
     .key_offsets = {0, 300, 390},
     .heads = 1,
     .kv_heads = 1,
     .channels = 16,
     .window = 40,
     .softcap = 3,
     .are_keys = true,
     .are_queries = true},
    {.offsets = {0, 200, 213},
     .key_offsets = {0, 200, 213},
     .heads = 2,
     .kv_heads = 2,
     .channels = 8,
     .causal = true,
     .window = 150,
     .are_keys = true,
     .are_queries = true},
};

at::Tensor leaf(const at::Tensor& x) {
  return x.detach().to(at::kDouble).clone().set_requires_grad(true);
}

struct Positions {
  at::Tensor keys, queries;
};

// `masks`: of the probabilities, [Hq, Tq, longest document of keys]; undefined: none.
at::Tensor dense(const Case& c, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& bias, const Positions& positions, const at::Tensor& masks = {}) {
  const int64_t group = c.heads / c.kv_heads;
  std::vector<at::Tensor> outs;
  for (size_t d = 0; d + 1 < c.offsets.size(); ++d) {
    const int64_t queries = c.offsets[d + 1] - c.offsets[d];
    const int64_t keys = c.key_offsets[d + 1] - c.key_offsets[d];
    const auto of = [&](const at::Tensor& x, int64_t begin, int64_t length, int64_t repeat) {
      return x.narrow(0, begin, length).repeat_interleave(repeat, 1).transpose(0, 1);
    };
    at::Tensor scores = at::matmul(of(q, c.offsets[d], queries, 1),
                                   of(k, c.key_offsets[d], keys, group).transpose(1, 2)) *
                        0.7;
    const at::Tensor distance =
        at::arange(keys).unsqueeze(0) - (at::arange(queries) + c.key_lead).unsqueeze(1);
    // [heads, queries, keys, channels].
    const auto spread = [&](const at::Tensor& table) {
      const at::Tensor places = (distance + table.size(0) / 2).view(-1);
      return table.index_select(0, places)
          .view({queries, keys, c.heads, c.channels})
          .permute({2, 0, 1, 3});
    };
    if (positions.keys.defined()) {
      const at::Tensor own = of(q, c.offsets[d], queries, 1).unsqueeze(2);
      scores = scores + (own * spread(positions.keys)).sum(-1) * 0.7;
    }
    if (positions.queries.defined()) {
      const at::Tensor own = of(k, c.key_offsets[d], keys, group).unsqueeze(1);
      scores = scores + (own * spread(positions.queries)).sum(-1) * 0.7;
    }
    if (c.softcap > 0) scores = c.softcap * at::tanh(scores / c.softcap);
    if (bias.defined()) {
      const at::Tensor places = (distance + bias.size(1) / 2).view(-1);
      scores = scores + bias.index_select(1, places).view({c.heads, queries, keys});
    }
    if (c.causal) {
      scores = scores.masked_fill(distance.gt(0), -std::numeric_limits<double>::infinity());
    }
    if (c.window > 0) {
      scores =
          scores.masked_fill(distance.abs().ge(c.window), -std::numeric_limits<double>::infinity());
    }
    at::Tensor shares = at::softmax(scores, -1);
    if (masks.defined()) {
      shares = shares * masks.narrow(1, c.offsets[d], queries).narrow(2, 0, keys);
    }
    outs.push_back(at::matmul(shares, of(v, c.key_offsets[d], keys, group)).transpose(0, 1));
  }
  return at::cat(outs, 0);
}

struct Input {
  explicit Input(const Case& c, at::ScalarType type) {
    at::manual_seed(3);
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(type);
    };
    q = random({c.offsets.back(), c.heads, c.channels});
    dout = random(q.sizes());
    k = random({c.key_offsets.back(), c.kv_heads, c.channels});
    v = random(k.sizes());
    if (c.has_bias) bias = at::randn({c.heads, 2 * 800 + 1}, at::kDouble).to(at::kFloat);
    token_keys = at::arange(c.offsets.back()) * 7 + 3;
    if (c.are_keys) positions.keys = random({2 * 310 + 1, c.heads, c.channels});
    if (c.are_queries) positions.queries = random({2 * 310 + 1, c.heads, c.channels});
  }
  at::Tensor q, k, v, dout, bias, token_keys;
  Positions positions;
};

BiasedAttentionOptions options_of(const Case& c, const Input& in) {
  return {.offsets = c.offsets,
          .key_offsets = c.key_offsets,
          .scale = 0.7,
          .key_lead = c.key_lead,
          .causal = c.causal,
          .window = c.window,
          .softcap = c.softcap,
          .key_positions = in.positions.keys,
          .query_positions = in.positions.queries};
}

void compare(const Case& c, const Input& in, const BiasedAttentionOptions& options,
             const at::Tensor& masks, double tolerance) {
  SCOPED_TRACE(testing::Message() << c10::toString(in.q.scalar_type()) << " " << c.offsets.back()
                                  << " queries, " << c.key_offsets.back() << " keys");
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const at::Tensor bias = c.has_bias ? leaf(in.bias) : at::Tensor();
  Positions positions;
  if (c.are_keys) positions.keys = leaf(in.positions.keys);
  if (c.are_queries) positions.queries = leaf(in.positions.queries);
  const at::Tensor expected = dense(c, q, k, v, bias, positions, masks);
  torch::autograd::backward({expected}, {in.dout.to(at::kDouble)});
  const auto judge = [&](const AttentionResult& found, const BiasedAttentionGradients& g) {
    EXPECT_LT(relative_error(found.out, expected), tolerance);
    EXPECT_LT(relative_error(g.dv, v.grad()), tolerance);
    if (c.key_offsets.back() == 1) return;  // one key has every share: no other gradient
    EXPECT_LT(relative_error(g.dq, q.grad()), tolerance);
    EXPECT_LT(relative_error(g.dk, k.grad()), tolerance);
    if (c.are_keys) {
      EXPECT_LT(relative_error(g.dkey_positions, positions.keys.grad()), tolerance);
    }
    if (c.are_queries) {
      EXPECT_LT(relative_error(g.dquery_positions, positions.queries.grad()), tolerance);
    }
    if (!c.has_bias) return;
    EXPECT_LT(relative_error(g.dbias, bias.grad()), tolerance);
  };
  const AttentionResult found = biased_attention(in.q, in.k, in.v, in.bias, options);
  judge(found,
        biased_attention_backward(in.dout, in.q, in.k, in.v, in.bias, found, options, c.has_bias));
  // What GPUs compute: all documents at once, some queries of a long one, each query by itself.
  for (const int64_t most_scores : {dense::kMostScores, int64_t{3000}, int64_t{1}}) {
    SCOPED_TRACE(testing::Message() << "dense, at most " << most_scores << " scores at once");
    const AttentionResult padded =
        dense::biased_attention(in.q, in.k, in.v, in.bias, options, most_scores);
    EXPECT_LT(relative_error(padded.lse, found.lse.to(at::kDouble)), 1e-5);
    judge(padded, dense::biased_attention_backward(in.dout, in.q, in.k, in.v, in.bias, padded,
                                                   options, c.has_bias, most_scores));
  }
}

TEST(BiasedAttention, EqualsDenseSoftmax) {
  for (const Case& c : kCases) {
    const Input in(c, at::kFloat);
    compare(c, in, options_of(c, in), {}, 1e-5);
    for (const Bf16Products products : reference::all_bf16_products()) {
      SCOPED_TRACE(reference::name_of(products));
      const reference::ChosenBf16 chosen(products);
      const Input rounded(c, at::kBFloat16);
      compare(c, rounded, options_of(c, rounded), {}, 3e-2);
    }
  }
}

TEST(BiasedAttention, DropsProbabilitiesByToken) {
  for (const Case& c : kCases) {
    const Input in(c, at::kFloat);
    BiasedAttentionOptions options = options_of(c, in);
    options.dropout = 0.3;
    options.dropout_key = 77;
    options.token_keys = in.token_keys;
    const at::Tensor ones = at::ones({c.offsets.back(), 800});
    std::vector<at::Tensor> masks;
    for (int64_t h = 0; h < c.heads; ++h) {
      const uint64_t key = 77 + static_cast<uint64_t>(h) * 0xD1B54A32D192ED03u;
      masks.push_back(dropout(ones, 0.3, in.token_keys, key).to(at::kDouble));
    }
    EXPECT_NE(at::equal(masks.front(), masks.back()), c.heads > 1);
    compare(c, in, options, at::stack(masks), 1e-5);
  }
}

TEST(BiasedAttention, ThreadsDoNotMatterToSumsOverDocuments) {
  const Offsets offsets = {0, 70, 71, 147, 200, 270, 340, 400, 470};
  const Case c = {.offsets = offsets,
                  .key_offsets = offsets,
                  .heads = 3,
                  .kv_heads = 3,
                  .channels = 24,
                  .are_keys = true,
                  .are_queries = true};
  Input in(c, at::kFloat);
  // As few distances as may be: the sums are in three pieces.
  for (at::Tensor* table : {&in.positions.keys, &in.positions.queries}) {
    *table = table->narrow(0, 310 - 75, 151);
  }
  const auto run = [&] {
    const BiasedAttentionOptions options = options_of(c, in);
    const AttentionResult r = biased_attention(in.q, in.k, in.v, in.bias, options);
    const BiasedAttentionGradients g = biased_attention_backward(in.dout, in.q, in.k, in.v, in.bias,
                                                                 r, options, /*wants_bias=*/true);
    return std::vector<at::Tensor>{
        r.out, g.dq, g.dk, g.dv, g.dbias, g.dkey_positions, g.dquery_positions};
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> one = run();
  at::set_num_threads(2);
  const std::vector<at::Tensor> two = run();
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << "result " << i;
}

TEST(BiasedAttention, RefusesWhatDoesNotFit) {
  const Case c = kCases[1];
  const Input in(c, at::kFloat);
  const auto run = [&](const BiasedAttentionOptions& options, const at::Tensor& bias) {
    biased_attention(in.q, in.k, in.v, bias, options);
  };
  BiasedAttentionOptions options = options_of(c, in);
  EXPECT_THROW(run(options, at::zeros({3, 2 * 50 + 1})), InternalError);  // distances up to 51
  EXPECT_THROW(run(options, at::zeros({2, 2 * 60 + 1})), InternalError);
  EXPECT_THROW(run(options, at::zeros({3, 2 * 60})), InternalError);
  options.window = -1;
  EXPECT_THROW(run(options, in.bias), InternalError);
  options.window = 0;
  EXPECT_NO_THROW(run(options, in.bias));
  options.key_positions = at::zeros({2 * 51 + 1, 3, 5});
  EXPECT_NO_THROW(run(options, in.bias));
  const std::vector<std::vector<int64_t>> shapes = {{101, 3, 5}, {103, 2, 5}, {103, 3, 4}};
  for (const std::vector<int64_t>& shape : shapes) {
    options.key_positions = at::zeros(shape);
    EXPECT_THROW(run(options, in.bias), InternalError);
  }
  options.key_positions = at::Tensor();
  const Offsets fewer = {0, 7, 60}, empty = {0, 7, 7, 60};
  options.key_offsets = fewer;
  EXPECT_THROW(run(options, in.bias), InternalError);
  options.key_offsets = empty;
  EXPECT_THROW(run(options, in.bias), InternalError);
}

}  // namespace
}  // namespace strata::ops
