// Oracle: exact values at the edges: extreme inputs, masked rows, ties, errors, numbers of threads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "reference.h"
#include "strata/base/error.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/quant/dynamic.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/square_sum.h"
#include "strata/ops/swiglu.h"

namespace strata::ops {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CrossEntropyEdge, AllRowsMasked) {
  at::Tensor logits = at::randn({3, 9});
  const CrossEntropySums sums =
      cross_entropy_(logits, at::full({3}, -100, at::kLong), 1.0f, /*want_gradient=*/true);
  EXPECT_EQ(sums.tokens, 0);
  EXPECT_EQ(sums.loss, 0);
  EXPECT_EQ(sums.entropy, 0);
  EXPECT_EQ(logits.abs().max().item<float>(), 0);
}

TEST(CrossEntropyEdge, LargeLogits) {
  at::Tensor logits = at::tensor({1e4f, -1e4f, 0.0f, 3e38f, -3e38f, 0.0f}).view({2, 3});
  const CrossEntropySums sums =
      cross_entropy_(logits, at::tensor({0, 0}, at::kLong), 1.0f, /*want_gradient=*/true);
  EXPECT_EQ(sums.loss, 0);
  EXPECT_EQ(sums.correct, 2);
  EXPECT_EQ(logits.abs().max().item<float>(), 0);
  at::Tensor wrong = at::tensor({100.0f, 0.0f}).view({1, 2});
  EXPECT_FLOAT_EQ(cross_entropy_(wrong, at::tensor({1}, at::kLong), 1.0f, true).loss, 100.0);
  EXPECT_FLOAT_EQ(wrong[0][0].item<float>(), 1.0f);
  EXPECT_FLOAT_EQ(wrong[0][1].item<float>(), -1.0f);
}

TEST(CrossEntropyEdge, MinusInfinityIsAProbabilityOfZero) {
  at::Tensor logits =
      at::tensor({0.0f, -std::numeric_limits<float>::infinity(), 0.0f}).view({1, 3});
  const CrossEntropySums sums = cross_entropy_(logits, at::tensor({2}, at::kLong), 1.0f, true);
  EXPECT_NEAR(sums.loss, std::log(2.0), 1e-6);
  EXPECT_NEAR(sums.entropy, std::log(2.0), 1e-6);
  EXPECT_EQ(logits[0][1].item<float>(), 0);
}

TEST(CrossEntropyEdge, NanShowsInTheLoss) {
  for (int64_t place : {0, 5, 18}) {
    at::Tensor logits = at::zeros({1, 19});
    logits[0][place] = kNan;
    EXPECT_TRUE(std::isnan(cross_entropy_(logits, at::tensor({3}, at::kLong), 1.0f, true).loss));
  }
}

TEST(CrossEntropyEdge, OnlyTheFirstOfEqualLogitsIsCorrect) {
  for (const auto& [target, correct] : {std::pair{1, 1}, {2, 0}, {0, 0}}) {
    at::Tensor logits = at::tensor({0.0f, 2.0f, 2.0f, 1.0f}).view({1, 4});
    EXPECT_EQ(cross_entropy_(logits, at::tensor({target}, at::kLong), 1.0f, false).correct,
              correct);
  }
}

TEST(CrossEntropyEdge, TargetOutOfRange) {
  for (int64_t id : {int64_t{5}, int64_t{-1}}) {
    EXPECT_THAT(
        [&] {
          cross_entropy_(at::zeros({2, 5}), at::tensor({int64_t{0}, id}), 1.0f, false);
        },
        ThrowsMessage<FormatError>(HasSubstr(fmt::format("targets[1]: found token id {}", id))));
  }
}

TEST(EmbeddingEdge, IdOutOfRange) {
  EXPECT_THAT(
      [] {
        ops::embedding(at::zeros({4, 2}), at::tensor({0, 4}, at::kLong));
      },
      ThrowsMessage<FormatError>(HasSubstr("ids[1]: found token id 4, expected 0 .. 3")));
}

TEST(AttentionEdge, LargeScoresPickOneKey) {
  // Scores of 1e4 and more: one probability is 1, the others 0, nothing overflows.
  const at::Tensor q = at::full({3, 1, 4}, 100.0), k = at::zeros({3, 1, 4});
  k[0].fill_(100.0);
  const at::Tensor v = at::arange(12, at::kFloat).view({3, 1, 4});
  const std::vector<int64_t> offsets = {0, 3};
  const AttentionResult r = attention(q, k, v, {offsets, 1.0});
  for (int64_t t = 0; t < 3; ++t) EXPECT_TRUE(at::equal(r.out[t], v[0]));
  const AttentionGradients g = attention_backward(at::ones_like(q), q, k, v, r, {offsets, 1.0});
  EXPECT_EQ(g.dq.abs().max().item<float>(), 0);
  EXPECT_EQ(g.dv[0].min().item<float>(), 3);
}

TEST(AttentionEdge, NanShowsInItsRowAndLaterOnes) {
  at::Tensor q = at::randn({4, 1, 4}), k = at::randn({4, 1, 4});
  const at::Tensor v = at::randn({4, 1, 4});
  k[2].fill_(kNan);
  const at::Tensor out = attention(q, k, v, {std::vector<int64_t>{0, 4}, 1.0}).out;
  EXPECT_FALSE(out.narrow(0, 0, 2).isnan().any().item<bool>());
  EXPECT_TRUE(out.narrow(0, 2, 2).isnan().all().item<bool>());
}

TEST(AttentionEdge, DocumentsDoNotSeeEachOther) {
  at::manual_seed(5);
  const at::Tensor q = at::randn({90, 2, 8}), k = at::randn({90, 2, 8}), v = at::randn({90, 2, 8});
  const at::Tensor whole = attention(q, k, v, {std::vector<int64_t>{0, 30, 90}, 0.3}).out;
  auto part = [](const at::Tensor& x) { return x.narrow(0, 30, 60); };
  const at::Tensor alone =
      attention(part(q), part(k), part(v), {std::vector<int64_t>{0, 60}, 0.3}).out;
  EXPECT_TRUE(at::equal(part(whole), alone));
}

TEST(AttentionEdge, NoTokens) {
  const at::Tensor empty = at::zeros({0, 2, 8});
  const AttentionResult r = attention(empty, empty, empty, {std::vector<int64_t>{0}, 1.0});
  EXPECT_EQ(r.out.numel(), 0);
}

TEST(AttentionEdge, BadOffsetsAndShapes) {
  const at::Tensor x = at::zeros({4, 3, 8}), two = at::zeros({4, 2, 8});
  EXPECT_THROW(attention(x, x, x, {std::vector<int64_t>{0, 3}, 1.0}), InternalError);
  EXPECT_THROW(attention(x, x, x, {std::vector<int64_t>{0, 3, 2, 4}, 1.0}), InternalError);
  EXPECT_THROW(attention(x, two, two, {std::vector<int64_t>{0, 4}, 1.0}), InternalError);
  EXPECT_THROW(attention(x, x, two, {std::vector<int64_t>{0, 4}, 1.0}), InternalError);
}

TEST(SwigluEdge, ExtremeGates) {
  const at::Tensor gate = at::tensor({-1e30f, -200.0f, -90.0f, 0.0f, 90.0f, 200.0f}).view({1, 6});
  const at::Tensor up = at::ones({1, 6});
  const at::Tensor y = swiglu(gate, up);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(y[0][i].item<float>(), std::max(gate[0][i].item<float>(), 0.0f), 1e-5);
  }
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
  swiglu_backward(up, gate, up, dgate, dup);
  EXPECT_TRUE(dgate.isfinite().all().item<bool>());
  EXPECT_FLOAT_EQ(dgate[0][5].item<float>(), 1.0f);
  EXPECT_TRUE(std::isnan(swiglu(at::full({1, 1}, kNan), at::ones({1, 1})).item<float>()));
}

TEST(GegluEdge, ExtremeGates) {
  const at::Tensor gate = at::tensor({-1e30f, -200.0f, -11.0f, 0.0f, 11.0f, 1e30f}).view({1, 6});
  const at::Tensor up = at::ones({1, 6});
  const at::Tensor y = geglu(gate, up), expected = gate.clamp_min(0);
  EXPECT_LT((y - expected).abs().div(expected.clamp_min(1)).max().item<float>(), 1e-6);
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
  geglu_backward(up, gate, up, dgate, dup);
  const at::Tensor slopes = at::tensor({0.0f, 0.0f, 0.0f, 0.5f, 1.0f, 1.0f}).view({1, 6});
  EXPECT_LT((dgate - slopes).abs().max().item<float>(), 1e-6);
  EXPECT_TRUE(std::isnan(geglu(at::full({1, 1}, kNan), at::ones({1, 1})).item<float>()));
}

TEST(RmsNormEdge, ZeroRow) {
  const RmsNormResult r = rms_norm(at::zeros({1, 4}), at::ones({4}), 1e-6);
  EXPECT_EQ(r.y.abs().max().item<float>(), 0);
  EXPECT_NEAR(r.rstd.item<float>(), 1e3, 1e-2);
}

TEST(DeviceEdge, TensorsWithoutDataAreWalkedByThePlan) {
  const at::Tensor x = at::zeros({2, 4}, at::TensorOptions(at::kMeta));
  const at::Tensor y = swiglu(x, x);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), x.sizes());
}

TEST(DeviceEdge, OnlyCpuHasKernels) {
  const at::Tensor x = at::zeros({2, 4}, at::TensorOptions(at::kMeta));
  EXPECT_THAT([&] { quant::encode_state(x, true, x, x); },
              ThrowsMessage<ConfigError>(HasSubstr("expected cpu")));
}

TEST(TypeEdge, OtherTypesAreRefused) {
  const at::Tensor x = at::zeros({2, 4}, at::kDouble);
  EXPECT_THROW(swiglu(x, x), InternalError);
  EXPECT_THROW(rms_norm(x, at::ones({4}), 1e-5), InternalError);
  EXPECT_THROW(apply_rope_(at::zeros({1, 1, 3}), at::zeros({1, 1}), at::zeros({1, 1}), false),
               InternalError);
}

// Every op with one and with two threads: the same bits.
TEST(Threads, ResultsAreBitEqual) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({700, 96}), weight = at::randn({96}), dy = at::randn({700, 96});
  const at::Tensor heads = at::randn({700, 6, 16});
  const std::vector<int64_t> offsets = {0, 100, 101, 700};
  const at::Tensor ids = at::randint(50, {700}, at::kLong);
  const at::Tensor logits = at::randn({300, 333}), targets = at::randint(333, {300}, at::kLong);
  auto run = [&] {
    std::vector<at::Tensor> out;
    const RmsNormResult norm = rms_norm(x, weight, 1e-5);
    at::Tensor dweight = at::empty({96}), table = at::empty({50, 96}), gradient = logits.clone();
    out.insert(out.end(), {norm.y, norm.rstd, dweight, table, gradient});
    out.push_back(rms_norm_backward(dy, x, weight, norm.rstd, dweight, 0));
    const at::Tensor kv = heads.narrow(1, 0, 3);
    const AttentionResult r = attention(heads, kv, kv, {offsets, 0.25});
    const AttentionGradients g = attention_backward(heads, heads, kv, kv, r, {offsets, 0.25});
    out.insert(out.end(), {r.out, r.lse, g.dq, g.dk, g.dv, swiglu(x, dy)});
    embedding_backward(dy, ids, table, 0);
    const CrossEntropySums sums = cross_entropy_(gradient, targets, 0.5f, true);
    out.push_back(at::tensor({sums.loss, sums.entropy, square_sum(heads), square_sum(logits)}));
    out.push_back(ops::dropout(x, 0.3, ids, 9));
    return out;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> one = run();
  at::set_num_threads(2);
  const std::vector<at::Tensor> two = run();
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << "result " << i;
}

}  // namespace
}  // namespace strata::ops
