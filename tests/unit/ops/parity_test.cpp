// Oracle: the same formulas from ATen's elementary operations in double, differentiated by
// autograd. What is more than a size of the table (op_table.h): heads, documents, caches, rounding.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "reference.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/rms_norm.h"

namespace strata::ops {
namespace {

using reference::relative_error;

// Storage types and what they may differ from double by, relative to the largest value.
struct Storage {
  at::ScalarType type;
  double tolerance;
};
const Storage kStorages[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}};

at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1.0) {
  return (at::randn(shape, at::kDouble) * scale).to(type);
}

// A leaf in double with the same values.
at::Tensor leaf(const at::Tensor& x) {
  return x.detach().to(at::kDouble).clone().set_requires_grad(true);
}

class Parity : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
};

TEST_F(Parity, RmsNormRoundsLikeLlama) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor expected =
      weight * (x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5)).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5).y;
  // Sums in another order may move a value across a rounding boundary, seldom.
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

TEST_F(Parity, RmsNormRoundsLikeGemma) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5);
  const at::Tensor expected = (normed * (1.0 + weight.to(at::kFloat))).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5, RmsNormKind::kGemma).y;
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

TEST_F(Parity, RmsNormRoundsLikeOlmo) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5);
  const at::Tensor expected = (weight * normed).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5, RmsNormKind::kOlmo).y;
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

struct AttentionRow {
  std::vector<int64_t> offsets;
  int64_t query_heads, kv_heads, channels;
  Sight sight = {};
};
const AttentionRow kAttentionRows[] = {
    {{0, 1}, 1, 1, 1},
    {{0, 1}, 2, 1, 8},
    {{0, 5}, 1, 1, 3},
    {{0, 1, 2, 3, 40}, 4, 2, 7},
    {{0, 130, 130, 131, 300}, 6, 3, 17},
    {{0, 257}, 8, 4, 64},
    {{0, 700}, 3, 1, 20},
    {{0, 64, 128, 200}, 2, 2, 128},
    {{0, 50}, 12, 1, 24},
    // Windows: a token and the one before, edges of blocks of queries and keys, wider than some
    // documents.
    {{0, 1, 40}, 2, 1, 8, {2}},
    {{0, 100, 109, 500}, 4, 2, 12, {7}},
    {{0, 257}, 8, 4, 64, {64}},
    {{0, 700}, 3, 1, 20, {65}},
    {{0, 900}, 1, 1, 16, {256}},
    {{0, 300, 1000}, 6, 3, 17, {301}},
    // Both ways.
    {{0, 1}, 2, 1, 8, {.is_causal = false}},
    {{0, 1, 2, 3, 40}, 4, 2, 7, {.is_causal = false}},
    {{0, 257, 257, 700}, 4, 4, 64, {.is_causal = false}},
};

// q, k, v as views into one fused buffer.
struct Heads {
  at::Tensor q, k, v;
};
Heads split(const at::Tensor& fused, const AttentionRow& row) {
  const int64_t heads = row.query_heads;
  return {fused.narrow(1, 0, heads), fused.narrow(1, heads, row.kv_heads),
          fused.narrow(1, heads + row.kv_heads, row.kv_heads)};
}

TEST_F(Parity, Attention) {
  for (const auto& [type, tolerance] : kStorages) {
    for (const AttentionRow& row : kAttentionRows) {
      const int64_t tokens = row.offsets.back();
      SCOPED_TRACE(testing::Message()
                   << c10::toString(type) << " tokens " << tokens << " heads " << row.query_heads
                   << " channels " << row.channels << " window " << row.sight.window << " causal "
                   << row.sight.is_causal);
      const int64_t heads = row.query_heads + 2 * row.kv_heads;
      const double scale = 1 / std::sqrt(static_cast<double>(row.channels));
      const Heads x = split(random({tokens, heads, row.channels}, type), row);
      const at::Tensor dout = random({tokens, row.query_heads, row.channels}, type);
      const at::Tensor q64 = leaf(x.q), k64 = leaf(x.k), v64 = leaf(x.v);
      const reference::Attention expected = reference::attention(
          q64, k64, v64, row.offsets, scale, 0, row.sight.window, {}, row.sight.is_causal);
      torch::autograd::backward({expected.out}, {dout.to(at::kDouble)});

      const AttentionResult result = attention(x.q, x.k, x.v, row.offsets, scale, row.sight);
      EXPECT_LT(relative_error(result.out, expected.out), tolerance);
      EXPECT_LT(relative_error(result.lse, expected.lse), tolerance);
      const AttentionGradients g = attention_backward(dout, x.q, x.k, x.v, result.out, result.lse,
                                                      row.offsets, scale, row.sight);
      // A single visible key has no gradient of q and k beyond rounding.
      const double floor = tolerance * k64.grad().abs().max().item<double>() + 1e-5;
      if (tokens > 1) {
        EXPECT_LT(relative_error(g.dq, q64.grad()), tolerance);
        EXPECT_LT(relative_error(g.dk, k64.grad()), tolerance);
      } else {
        EXPECT_LT(g.dq.abs().max().item<double>(), type == at::kFloat ? floor : 0.1);
      }
      EXPECT_LT(relative_error(g.dv, v64.grad()), tolerance);
      // Into views of one fused gradient.
      const Heads d = split(at::empty({tokens, heads, row.channels}, type), row);
      attention_backward_into(dout, x.q, x.k, x.v, result.out, result.lse, row.offsets, scale,
                              {d.q, d.k, d.v}, row.sight);
      EXPECT_TRUE(at::equal(d.q, g.dq) && at::equal(d.k, g.dk) && at::equal(d.v, g.dv));
    }
  }
}

// What all keys have in common has no part in a query's gradient, however large it is: what a row's
// scores get adds up to nothing. In bfloat16 the output, rounded, says that sum only roughly.
TEST_F(Parity, AttentionOfKeysThatAreAlike) {
  const std::vector<int64_t> offsets = {0, 30, 230};
  for (const auto& [type, tolerance] : kStorages) {
    const at::Tensor q = random({230, 2, 16}, type, 0.3), v = random({230, 1, 16}, type);
    const at::Tensor k = (at::randn({230, 1, 16}, at::kDouble) + 20).to(type);
    const at::Tensor dout = random({230, 2, 16}, type);
    const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
    const at::Tensor expected = reference::attention(q64, k64, v64, offsets, 0.25).out;
    torch::autograd::backward({expected}, {dout.to(at::kDouble)});
    const AttentionResult result = attention(q, k, v, offsets, 0.25);
    const AttentionGradients g =
        attention_backward(dout, q, k, v, result.out, result.lse, offsets, 0.25);
    EXPECT_LT(relative_error(g.dq, q64.grad()), tolerance) << type;
    EXPECT_LT(relative_error(g.dk, k64.grad()), tolerance) << type;
    EXPECT_LT(relative_error(g.dv, v64.grad()), tolerance) << type;
  }
}

TEST_F(Parity, AttentionWithCache) {
  struct Row {
    int64_t queries, keys, window = 0;
  };
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [queries, keys, window] :
         {Row{1, 1}, Row{1, 300}, Row{7, 7}, Row{7, 600}, Row{129, 400}, Row{1, 300, 1},
          Row{7, 600, 70}, Row{129, 400, 100}}) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << queries << " of " << keys);
      const at::Tensor q = random({queries, 6, 16}, type);
      const at::Tensor k = random({keys, 2, 16}, type), v = random({keys, 2, 16}, type);
      const reference::Attention expected =
          reference::attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {0, keys},
                               0.25, keys - queries, window);
      EXPECT_LT(relative_error(attention_with_cache(q, k, v, 0.25, window).out, expected.out),
                tolerance);
    }
  }
}

}  // namespace
}  // namespace strata::ops
