// Oracle: slopes as transformers' BLOOM and MPT give them (golden), and attention to keys whose
// scores grow with their position, written out.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/nn/attention/alibi.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/kv_cache.h"

namespace strata::nn {
namespace {

TEST(Alibi, SlopesAreTheReferences) {
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0.00390625f}));
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{0.0625f, 0.00390625f, 0.25f}));
  const std::vector<float> found = alibi_slopes(24);
  const std::vector<float> expected = {
      0.7071067690849304f, 0.4999999701976776f, 0.3535533845424652f, 0.2499999850988388f,
      0.1767766773700714f, 0.1249999850988388f, 0.0883883386850357f, 0.0624999925494194f,
      0.0441941656172276f, 0.0312499944120649f, 0.0220970828086138f, 0.0156249972060323f,
      0.0110485404729843f, 0.0078124981373549f, 0.0055242702364922f, 0.0039062488358468f,
      0.8408964276313782f, 0.5946035981178284f, 0.4204482436180115f, 0.2973017990589142f,
      0.2102241367101669f, 0.1486509144306183f, 0.1051120683550835f, 0.0743254646658897f};
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_FLOAT_EQ(found[i], expected[i]) << i;
}

TEST(Alibi, SpreadSlopesAreTheReferences) {
  EXPECT_EQ(spread_alibi_slopes(1), (std::vector<float>{0.00390625f}));
  EXPECT_EQ(spread_alibi_slopes(4), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  EXPECT_EQ(spread_alibi_slopes(3), (std::vector<float>{0.0625f, 0.00390625f, 0.25f}));
  const std::vector<float> found = spread_alibi_slopes(6);
  const std::vector<float> expected = {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f};
  EXPECT_EQ(found, expected);
}

constexpr int64_t kHeads = 3, kChannels = 8;

AttentionOptions options_with(const at::Tensor& bias) {
  return {.num_heads = kHeads,
          .num_kv_heads = kHeads,
          .head_dim = kChannels,
          .scale = 1 / std::sqrt(static_cast<double>(kChannels)),
          .layer = 0,
          .rotates = false,
          .bias = bias};
}

// Of one document, by the positions of its keys.
at::Tensor written_out(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto heads = [](const at::Tensor& x) {
    return x.view({x.size(0), kHeads, kChannels}).transpose(0, 1).to(at::kDouble);
  };
  const int64_t tokens = q.size(0);
  at::Tensor scores = at::matmul(heads(q), heads(k).transpose(1, 2)) / std::sqrt(double(kChannels));
  const at::Tensor slopes = at::tensor(alibi_slopes(kHeads), at::kDouble);
  scores = scores + slopes.view({-1, 1, 1}) * at::arange(tokens, at::kDouble);
  scores = scores.masked_fill(at::ones({tokens, tokens}, at::kBool).triu(1), -INFINITY);
  return at::matmul(scores.softmax(-1), heads(v)).transpose(0, 1).reshape({tokens, -1});
}

TEST(Alibi, DocumentsBeginAnew) {
  Batch batch;
  batch.ids = at::zeros({15}, at::kLong);
  batch.offsets = {0, 9, 10, 15};
  const ForwardContext context{.batch = &batch};
  Alibi alibi(alibi_slopes(kHeads));
  const auto draw = [] { return at::randn({15, kHeads * kChannels}); };
  const at::Tensor q = draw(), k = draw(), v = draw();
  const at::Tensor found = attention(q, k, v, options_with(alibi.table(context)), context);
  for (size_t d = 1; d < batch.offsets.size(); ++d) {
    const auto part = [&](const at::Tensor& x) {
      return x.slice(0, batch.offsets[d - 1], batch.offsets[d]);
    };
    const at::Tensor expected = written_out(part(q), part(k), part(v));
    EXPECT_LT((part(found).to(at::kDouble) - expected).abs().max().item<double>(), 1e-5);
  }
}

TEST(Alibi, TokensOfACacheContinueTheDocument) {
  constexpr int64_t kTokens = 11, kFirst = 6;
  const auto draw = [] { return at::randn({kTokens, kHeads * kChannels}); };
  const at::Tensor q = draw(), k = draw(), v = draw();
  KvCache cache(/*num_layers=*/1, /*capacity=*/kTokens);
  Alibi alibi(alibi_slopes(kHeads));
  std::vector<at::Tensor> found;
  for (const auto& [begin, end] : {std::pair(int64_t{0}, kFirst), std::pair(kFirst, kTokens)}) {
    Batch batch;
    batch.ids = at::zeros({end - begin}, at::kLong);
    batch.offsets = {0, end - begin};
    const ForwardContext context{.batch = &batch, .generation = {.cache = &cache}};
    const auto part = [&](const at::Tensor& x) { return x.slice(0, begin, end).contiguous(); };
    found.push_back(
        attention(part(q), part(k), part(v), options_with(alibi.table(context)), context));
    cache.length += end - begin;
  }
  const at::Tensor expected = written_out(q, k, v);
  EXPECT_LT((at::cat(found).to(at::kDouble) - expected).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace strata::nn
