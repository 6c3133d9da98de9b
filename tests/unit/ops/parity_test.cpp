// Oracle: the same formulas from ATen's elementary operations in double, differentiated by
// autograd. One table of shapes for each op; every row runs in fp32 and bf16.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "reference.h"
#include "strata/ops/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/embedding.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/swiglu.h"

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

struct Size2 {
  int64_t rows, columns;
};
const Size2 kSizes[] = {{1, 1}, {1, 64}, {3, 7}, {65, 24}, {200, 129}, {33, 512}, {0, 8}};

TEST_F(Parity, RmsNorm) {
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [rows, columns] : kSizes) {
      if (rows == 0 || columns == 1) continue;  // one channel: the gradient is 0
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << rows << "x" << columns);
      const at::Tensor x = random({rows, columns}, type);
      const at::Tensor weight = random({columns}, type);
      const at::Tensor dy = random({rows, columns}, type);
      const at::Tensor residual = random({rows, columns}, type);
      const at::Tensor x64 = leaf(x), weight64 = leaf(weight);
      const at::Tensor y64 = reference::rms_norm(x64, weight64, 1e-6);
      torch::autograd::backward({y64}, {dy.to(at::kDouble)});

      const RmsNormResult result = rms_norm(x, weight, 1e-6);
      EXPECT_EQ(result.y.scalar_type(), type);
      EXPECT_LT(relative_error(result.y, y64), tolerance);
      at::Tensor dweight = at::full({columns}, 7.0, type);
      const at::Tensor dx = rms_norm_backward(dy, x, weight, result.rstd, dweight, 0);
      EXPECT_LT(relative_error(dx, x64.grad()), tolerance);
      EXPECT_LT(relative_error(dweight, weight64.grad()), tolerance);
      at::Tensor added = at::full({columns}, 0.5, at::kFloat);
      const at::Tensor with_residual =
          rms_norm_backward_add(dy, x, weight, result.rstd, added, 1, residual);
      EXPECT_LT(relative_error(with_residual, x64.grad() + residual.to(at::kDouble)), tolerance);
      EXPECT_LT(relative_error(added, weight64.grad() + 0.5), tolerance);
      EXPECT_LT(relative_error(rms_norm_backward(dy, x, weight, result.rstd, at::Tensor(), 0),
                               x64.grad()),
                tolerance);
    }
  }
}

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

TEST_F(Parity, Rope) {
  struct Row {
    int64_t tokens, heads, channels;
  };
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [tokens, heads, channels] :
         {Row{1, 1, 2}, Row{5, 3, 6}, Row{40, 8, 64}, Row{17, 2, 34}}) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << tokens << " " << channels);
      const at::Tensor angles = at::randn({tokens, channels / 2}, at::kDouble) * 3;
      const at::Tensor cos = angles.cos().to(at::kFloat), sin = angles.sin().to(at::kFloat);
      // A strided view: the middle heads of a wider buffer.
      at::Tensor buffer = random({tokens, heads + 2, channels}, type);
      const at::Tensor untouched = buffer.clone();
      at::Tensor x = buffer.narrow(1, 1, heads);
      const at::Tensor expected = reference::rope(x.to(at::kDouble), angles.cos(), angles.sin());
      apply_rope_(x, cos, sin, /*inverse=*/false);
      EXPECT_LT(relative_error(x, expected), tolerance);
      EXPECT_TRUE(at::equal(buffer.narrow(1, 0, 1), untouched.narrow(1, 0, 1)));
      EXPECT_TRUE(at::equal(buffer.narrow(1, heads + 1, 1), untouched.narrow(1, heads + 1, 1)));
      apply_rope_(x, cos, sin, /*inverse=*/true);
      EXPECT_LT(relative_error(x, untouched.narrow(1, 1, heads)), tolerance);
    }
  }
}

TEST_F(Parity, Swiglu) {
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [rows, columns] : kSizes) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << rows << "x" << columns);
      const at::Tensor fused = random({rows, 2 * columns}, type, 3.0);
      const at::Tensor gate = fused.narrow(1, 0, columns);
      const at::Tensor up = fused.narrow(1, columns, columns);
      const at::Tensor dy = random({rows, columns}, type);
      const at::Tensor gate64 = leaf(gate), up64 = leaf(up);
      const at::Tensor y64 = reference::swiglu(gate64, up64);
      torch::autograd::backward({y64}, {dy.to(at::kDouble)});
      EXPECT_LT(relative_error(swiglu(gate, up), y64), tolerance);
      at::Tensor dgate = at::empty({rows, columns}, type), dup = at::empty({rows, columns}, type);
      swiglu_backward(dy, gate, up, dgate, dup);
      EXPECT_LT(relative_error(dgate, gate64.grad()), tolerance);
      EXPECT_LT(relative_error(dup, up64.grad()), tolerance);
      at::Tensor in_place = fused.clone();
      at::Tensor own_gate = in_place.narrow(1, 0, columns);
      at::Tensor own_up = in_place.narrow(1, columns, columns);
      swiglu_backward(dy, own_gate, own_up, own_gate, own_up);
      EXPECT_TRUE(at::equal(own_gate, dgate));
      EXPECT_TRUE(at::equal(own_up, dup));
    }
  }
}

struct AttentionRow {
  std::vector<int64_t> offsets;
  int64_t query_heads, kv_heads, channels;
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
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " tokens " << tokens << " heads "
                                      << row.query_heads << " channels " << row.channels);
      const int64_t heads = row.query_heads + 2 * row.kv_heads;
      const double scale = 1 / std::sqrt(static_cast<double>(row.channels));
      const Heads x = split(random({tokens, heads, row.channels}, type), row);
      const at::Tensor dout = random({tokens, row.query_heads, row.channels}, type);
      const at::Tensor q64 = leaf(x.q), k64 = leaf(x.k), v64 = leaf(x.v);
      const reference::Attention expected = reference::attention(q64, k64, v64, row.offsets, scale);
      torch::autograd::backward({expected.out}, {dout.to(at::kDouble)});

      const AttentionResult result = attention(x.q, x.k, x.v, row.offsets, scale);
      EXPECT_LT(relative_error(result.out, expected.out), tolerance);
      EXPECT_LT(relative_error(result.lse, expected.lse), tolerance);
      const AttentionGradients g =
          attention_backward(dout, x.q, x.k, x.v, result.out, result.lse, row.offsets, scale);
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
                              {d.q, d.k, d.v});
      EXPECT_TRUE(at::equal(d.q, g.dq) && at::equal(d.k, g.dk) && at::equal(d.v, g.dv));
    }
  }
}

TEST_F(Parity, AttentionWithCache) {
  struct Row {
    int64_t queries, keys;
  };
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [queries, keys] :
         {Row{1, 1}, Row{1, 300}, Row{7, 7}, Row{7, 600}, Row{129, 400}}) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << queries << " of " << keys);
      const at::Tensor q = random({queries, 6, 16}, type);
      const at::Tensor k = random({keys, 2, 16}, type), v = random({keys, 2, 16}, type);
      const reference::Attention expected = reference::attention(
          q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {0, keys}, 0.25, keys - queries);
      EXPECT_LT(relative_error(attention_with_cache(q, k, v, 0.25), expected.out), tolerance);
    }
  }
}

TEST_F(Parity, CrossEntropy) {
  for (const auto& [rows, vocabulary] :
       {Size2{1, 1}, Size2{1, 2}, Size2{9, 37}, Size2{33, 8191}, Size2{4, 20000}, Size2{0, 5}}) {
    SCOPED_TRACE(testing::Message() << rows << "x" << vocabulary);
    const at::Tensor logits = random({rows, vocabulary}, at::kFloat, 4.0);
    at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
    if (rows > 2) targets[1] = -100;
    const at::Tensor logits64 = leaf(logits);
    const at::Tensor used = targets != -100;
    const at::Tensor log_p = at::log_softmax(logits64, -1);
    const at::Tensor picked = log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor loss = -(picked * used).sum();
    torch::autograd::backward({loss * 0.125});
    const at::Tensor entropy = -((log_p.exp() * log_p).sum(-1) * used).sum();

    at::Tensor own = logits.clone();
    const CrossEntropySums plain = cross_entropy_(own, targets, 0.125f, /*want_gradient=*/false);
    EXPECT_TRUE(at::equal(own, logits));
    const CrossEntropySums sums = cross_entropy_(own, targets, 0.125f, /*want_gradient=*/true);
    EXPECT_EQ(sums.loss, plain.loss);
    EXPECT_EQ(sums.tokens, used.sum().item<int64_t>());
    EXPECT_NEAR(sums.loss, loss.item<double>(), 1e-5 * std::abs(loss.item<double>()) + 1e-6);
    EXPECT_NEAR(sums.entropy, entropy.item<double>(),
                1e-5 * std::abs(entropy.item<double>()) + 1e-5);
    if (rows == 0) continue;
    EXPECT_EQ(sums.correct, ((logits.argmax(-1) == targets) & used).sum().item<double>());
    if (vocabulary > 1) {
      EXPECT_LT(relative_error(own, logits64.grad()), 1e-5);
    }
  }
}

TEST_F(Parity, Embedding) {
  for (const auto& [type, tolerance] : kStorages) {
    for (const auto& [tokens, channels] : kSizes) {
      const int64_t vocabulary = 11;
      const at::Tensor weight = random({vocabulary, channels}, type);
      const at::Tensor ids = at::randint(vocabulary, {tokens}, at::kLong);
      EXPECT_TRUE(at::equal(ops::embedding(weight, ids), weight.index_select(0, ids)));
      const at::Tensor dy = random({tokens, channels}, type);
      const at::Tensor expected =
          at::zeros({vocabulary, channels}, at::kDouble).index_add(0, ids, dy.to(at::kDouble));
      at::Tensor written = at::full({vocabulary, channels}, 3.0, at::kFloat);
      embedding_backward(dy, ids, written, 0);
      if (tokens > 0) {
        EXPECT_LT(relative_error(written, expected), 1e-5);
      }
      at::Tensor added = at::full({vocabulary, channels}, 1.0, type);
      embedding_backward(dy, ids, added, 1);
      EXPECT_LT(relative_error(added, expected + 1.0), tolerance);
    }
  }
}

}  // namespace
}  // namespace strata::ops
