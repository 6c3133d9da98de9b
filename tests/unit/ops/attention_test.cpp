// Oracle: the same formulas from ATen's elementary operations in double, differentiated by
// autograd, for every way in which the processor multiplies bf16.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "chosen_bf16.h"
#include "reference.h"
#include "strata/ops/attention/attention.h"

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

double relative_norm(const at::Tensor& x, const at::Tensor& expected) {
  return ((x.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

class Attention : public testing::TestWithParam<Bf16Products> {
 protected:
  void SetUp() override { at::manual_seed(1); }

 private:
  reference::ChosenBf16 chosen_{GetParam()};
};

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
    {{0, 700}, 3, 1, 33},
    {{0, 300, 900}, 5, 1, 80},
    {{0, 64, 128, 200}, 2, 2, 128},
    {{0, 300}, 2, 2, 128},
    {{0, 50}, 12, 1, 24},
    // Windows: a token and the one before, edges of blocks of queries and keys, wider than some
    // documents.
    {{0, 1, 40}, 2, 1, 8, {2}},
    {{0, 100, 109, 500}, 4, 2, 12, {7}},
    {{0, 257}, 8, 4, 64, {64}},
    {{0, 700}, 3, 1, 20, {65}},
    {{0, 900}, 1, 1, 16, {256}},
    {{0, 900}, 1, 1, 32, {256}},
    {{0, 900}, 2, 2, 40, {300}},
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

TEST_P(Attention, EqualsDouble) {
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

      const AttentionResult result = attention(x.q, x.k, x.v, {row.offsets, scale, row.sight});
      EXPECT_LT(relative_error(result.out, expected.out), tolerance);
      EXPECT_LT(relative_error(result.lse, expected.lse), tolerance);
      const AttentionGradients g =
          attention_backward(dout, x.q, x.k, x.v, result, {row.offsets, scale, row.sight});
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
      attention_backward_into(dout, x.q, x.k, x.v, result, {row.offsets, scale, row.sight},
                              {d.q, d.k, d.v});
      EXPECT_TRUE(at::equal(d.q, g.dq) && at::equal(d.k, g.dk) && at::equal(d.v, g.dv));
    }
  }
}

// What all keys have in common has no part in a query's gradient, however large it is: what a row's
// scores get adds up to nothing. In bfloat16 the output, rounded, says that sum only roughly.
TEST_P(Attention, OfKeysThatAreAlike) {
  const std::vector<int64_t> offsets = {0, 30, 286};
  for (const auto& [type, tolerance] : kStorages) {
    const at::Tensor q = random({286, 2, 32}, type, 0.3), v = random({286, 1, 32}, type);
    const at::Tensor k = (at::randn({286, 1, 32}, at::kDouble) + 20).to(type);
    const at::Tensor dout = random({286, 2, 32}, type);
    const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
    const at::Tensor expected = reference::attention(q64, k64, v64, offsets, 0.25).out;
    torch::autograd::backward({expected}, {dout.to(at::kDouble)});
    const AttentionResult result = attention(q, k, v, {offsets, 0.25});
    const AttentionGradients g = attention_backward(dout, q, k, v, result, {offsets, 0.25});
    EXPECT_LT(relative_error(g.dq, q64.grad()), tolerance) << type;
    EXPECT_LT(relative_error(g.dk, k64.grad()), tolerance) << type;
    EXPECT_LT(relative_error(g.dv, v64.grad()), tolerance) << type;
  }
}

// Seen through narrow windows, in documents of many blocks. The bound is twice what rounding the
// result alone makes.
TEST_P(Attention, OfKeysThatAreAlikeInWindows) {
  const std::vector<int64_t> offsets = {0, 600};
  for (const int64_t heads : {1, 4}) {
    for (const Sight sight : {Sight{7}, Sight{128}, Sight{65, /*is_causal=*/false}}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, window " << sight.window);
      const at::Tensor q = random({600, heads, 64}, at::kBFloat16, 0.3);
      const at::Tensor k = (at::randn({600, 1, 64}, at::kDouble) + 20).to(at::kBFloat16);
      const at::Tensor v = random(k.sizes(), at::kBFloat16),
                       dout = random(q.sizes(), at::kBFloat16);
      const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
      const at::Tensor expected =
          reference::attention(q64, k64, v64, offsets, 0.125, 0, sight.window, {}, sight.is_causal)
              .out;
      torch::autograd::backward({expected}, {dout.to(at::kDouble)});
      const AttentionResult r = attention(q, k, v, {offsets, 0.125, sight});
      const AttentionGradients g = attention_backward(dout, q, k, v, r, {offsets, 0.125, sight});
      EXPECT_LT(relative_norm(g.dq, q64.grad()), 2 * 1.66e-3);
    }
  }
}

TEST_P(Attention, WithCache) {
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

// What bf16 rounds beside fp32 is not more than in ATen's kernel, which keeps no more of it.
TEST_P(Attention, RoundsNoMoreThanAten) {
  for (const int64_t tokens : {256, 500}) {
    for (const double size : {1.0, 3.0}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, queries of " << size);
      const std::vector<int64_t> offsets = {0, tokens};
      const at::Tensor q = random({tokens, 4, 64}, at::kBFloat16, size);
      const at::Tensor k = random(q.sizes(), at::kBFloat16), v = random(q.sizes(), at::kBFloat16);
      const at::Tensor dout = random(q.sizes(), at::kBFloat16);
      const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
      const at::Tensor exact = reference::attention(q64, k64, v64, offsets, 0.125).out;
      torch::autograd::backward({exact}, {dout.to(at::kDouble)});
      const AttentionResult r = attention(q, k, v, {offsets, 0.125});
      const AttentionGradients g = attention_backward(dout, q, k, v, r, {offsets, 0.125});

      const auto heads_first = [](const at::Tensor& x) { return x.unsqueeze(0).transpose(1, 2); };
      const auto tokens_first = [](const at::Tensor& x) { return x.transpose(1, 2).squeeze(0); };
      const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          heads_first(q), heads_first(k), heads_first(v), 0.0, /*is_causal=*/true, {}, 0.125);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          heads_first(dout), heads_first(q), heads_first(k), heads_first(v), out, lse, 0.0, true,
          {}, 0.125);
      constexpr double kOfTheDraw = 1.02;
      EXPECT_LT(relative_norm(r.out, exact), kOfTheDraw * relative_norm(tokens_first(out), exact));
      EXPECT_LT(relative_norm(g.dq, q64.grad()),
                kOfTheDraw * relative_norm(tokens_first(dq), q64.grad()));
      EXPECT_LT(relative_norm(g.dk, k64.grad()),
                kOfTheDraw * relative_norm(tokens_first(dk), k64.grad()));
      EXPECT_LT(relative_norm(g.dv, v64.grad()),
                kOfTheDraw * relative_norm(tokens_first(dv), v64.grad()));
    }
  }
}

// Every way with one and with two threads: the same bits.
TEST_P(Attention, ThreadsDoNotMatter) {
  const at::Tensor q = random({500, 6, 40}, at::kBFloat16), k = random({500, 2, 40}, at::kBFloat16);
  const std::vector<int64_t> offsets = {0, 100, 101, 500};
  const auto run = [&] {
    const AttentionResult r = attention(q, k, k, {offsets, 0.25});
    const AttentionGradients g = attention_backward(q, q, k, k, r, {offsets, 0.25});
    return std::vector<at::Tensor>{r.out, r.lse, g.dq, g.dk, g.dv};
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> one = run();
  at::set_num_threads(2);
  const std::vector<at::Tensor> two = run();
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << "result " << i;
}

// What a query does not see does not show in its result.
TEST_P(Attention, WhatIsMaskedMayBeAnything) {
  const double nan = std::nan("");
  const at::Tensor q = random({600, 2, 32}, at::kBFloat16), v = random({600, 2, 32}, at::kBFloat16);
  const at::Tensor k = random({600, 2, 32}, at::kBFloat16);
  const std::vector<int64_t> offsets = {0, 300, 600};
  const at::Tensor clean = attention(q, k, v, {offsets, 0.3}).out;
  at::Tensor spoiled = k.clone();
  spoiled[299].fill_(nan);
  const at::Tensor out = attention(q, spoiled, v, {offsets, 0.3}).out;
  EXPECT_TRUE(at::equal(out.narrow(0, 0, 299), clean.narrow(0, 0, 299)));
  EXPECT_TRUE(out[299].isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(out.narrow(0, 300, 300), clean.narrow(0, 300, 300)));
}

INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(reference::all_bf16_products()),
                         [](const auto& info) { return reference::name_of(info.param); });

}  // namespace
}  // namespace strata::ops
