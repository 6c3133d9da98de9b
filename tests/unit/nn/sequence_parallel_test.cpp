// Oracle: the same tokens and heads on one rank; ranks are threads of this process.
#include "strata/nn/attention/sequence_parallel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "../comm/on_ranks.h"

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 3, kDim = 5;  // of a rank; channels

at::Tensor sample(int64_t rows, int64_t columns, double frequency) {
  return at::sin(at::arange(rows * columns, at::kFloat).mul_(frequency)).view({rows, columns});
}

// The columns of heads [first, first + count).
at::Tensor heads(const at::Tensor& x, int64_t first, int64_t count) {
  return x.narrow(1, first * kDim, count * kDim);
}

struct Shape {
  int ranks;
  int64_t queries, keys;
};

class HeadShares : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(, HeadShares,
                         testing::Values(Shape{2, 4, 2}, Shape{4, 4, 2}, Shape{3, 3, 1},
                                         Shape{2, 2, 2}, Shape{2, 8, 4}, Shape{3, 6, 6},
                                         Shape{1, 3, 1}));

// What every rank is to have of q, k and v of all tokens, [T, (H / P + 2 K / P) * D].
at::Tensor share_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const HeadShare& share) {
  const int64_t key = share.sequence->rank() * share.num_kv_heads / share.sequence->size();
  return at::cat({heads(q, share.first_head(), share.own_heads()),
                  heads(k, key, share.own_kv_heads()), heads(v, key, share.own_kv_heads())},
                 1);
}

TEST_P(HeadShares, AreAllTokensOfThem) {
  const auto [ranks, queries, keys] = GetParam();
  comm::on_ranks(ranks, [&](comm::Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    const HeadShare share{queries, keys, kDim, group.get()};
    const int64_t all = ranks * kTokens, own = group->rank() * kTokens;
    const at::Tensor q = sample(all, queries * kDim, 0.7), k = sample(all, keys * kDim, 1.3),
                     v = sample(all, keys * kDim, 0.3);
    const auto leaf = [&](const at::Tensor& x) {
      return x.narrow(0, own, kTokens).clone().requires_grad_(true);
    };
    const at::Tensor own_q = leaf(q), own_k = leaf(k), own_v = leaf(v);
    const at::Tensor shared = to_own_heads(share, own_q, own_k, own_v);
    EXPECT_TRUE(at::equal(shared, share_of(q, k, v, share)));

    // The gradient of the sum over ranks of <shared, weights>, by autograd on one rank.
    const at::Tensor weights = sample(all, shared.size(1), 0.9 + group->rank());
    const auto made = torch::autograd::grad({shared}, {own_q, own_k, own_v}, {weights});
    const at::Tensor whole[] = {q.clone().requires_grad_(true), k.clone().requires_grad_(true),
                                v.clone().requires_grad_(true)};
    at::Tensor sum = at::zeros({});
    for (int r = 0; r < ranks; ++r) {
      const int64_t count = queries / ranks, kv = std::max<int64_t>(1, keys / ranks);
      const at::Tensor part =
          at::cat({heads(whole[0], r * count, count), heads(whole[1], r * keys / ranks, kv),
                   heads(whole[2], r * keys / ranks, kv)},
                  1);
      sum = sum + (part * sample(all, part.size(1), 0.9 + r)).sum();
    }
    const auto expected = torch::autograd::grad({sum}, {whole[0], whole[1], whole[2]});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::allclose(made[i], expected[i].narrow(0, own, kTokens), 1e-6, 1e-6)) << i;
    }
  });
}

TEST_P(HeadShares, OfAFusedProjectionAreThoseOfItsParts) {
  const auto [ranks, queries, keys] = GetParam();
  comm::on_ranks(ranks, [&](comm::Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    const HeadShare share{queries, keys, kDim, group.get()};
    for (const bool interleaved : {false, true}) {
      if (interleaved && keys != queries) continue;
      const at::Tensor qkv =
          sample(kTokens, (queries + 2 * keys) * kDim, 0.5 + group->rank()).requires_grad_(true);
      at::Tensor q = heads(qkv, 0, queries), k = heads(qkv, queries, keys),
                 v = heads(qkv, queries + keys, keys);
      if (interleaved) {
        const at::Tensor all = qkv.view({kTokens, queries, 3, kDim});
        q = all.select(2, 0).flatten(1);
        k = all.select(2, 1).flatten(1);
        v = all.select(2, 2).flatten(1);
      }
      const at::Tensor expected =
          to_own_heads(share, q.contiguous(), k.contiguous(), v.contiguous());
      const at::Tensor found = to_own_heads(share, qkv, interleaved);
      EXPECT_TRUE(at::equal(found, expected));
      const at::Tensor weights = sample(found.size(0), found.size(1), 0.9 + group->rank());
      const at::Tensor ours = torch::autograd::grad({found}, {qkv}, {weights})[0];
      EXPECT_TRUE(at::equal(ours, torch::autograd::grad({expected}, {qkv}, {weights})[0]));
    }
  });
}

TEST_P(HeadShares, ComeBackAsTheRanksTokens) {
  const auto [ranks, queries, keys] = GetParam();
  comm::on_ranks(ranks, [&](comm::Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    const HeadShare share{queries, keys, kDim, group.get()};
    const int64_t all = ranks * kTokens, own = group->rank() * kTokens;
    const at::Tensor whole = sample(all, queries * kDim, 0.7);
    const at::Tensor x =
        heads(whole, share.first_head(), share.own_heads()).clone().requires_grad_(true);
    const at::Tensor tokens = to_own_tokens(share, x);
    EXPECT_TRUE(at::equal(tokens, whole.narrow(0, own, kTokens)));
    const at::Tensor weights = sample(all, queries * kDim, 1.1);
    const at::Tensor dx =
        torch::autograd::grad({tokens}, {x}, {weights.narrow(0, own, kTokens)})[0];
    EXPECT_TRUE(at::equal(dx, heads(weights, share.first_head(), share.own_heads())));
  });
}

Batch batch_of(const std::vector<int64_t>& lengths) {
  Batch batch;
  batch.offsets = {0};
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) {
    batch.offsets.push_back(batch.offsets.back() + length);
    positions.push_back(at::arange(length, at::kLong));
  }
  const int64_t tokens = batch.offsets.back();
  batch.ids = at::arange(tokens, at::kLong) + 100;
  batch.targets = at::arange(tokens, at::kLong) + 200;
  batch.token_keys = at::arange(tokens, at::kLong) + 300;
  batch.positions = at::cat(positions);
  return batch;
}

// All parts together are the batch, then tokens that nobody trains on.
TEST(PartOf, IsARanksTokens) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{8}, {1}, {3, 4, 1, 5}, {2, 2}, {7, 6}}) {
    for (const int ranks : {1, 2, 3, 4}) {
      comm::on_ranks(ranks, [&](comm::Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        const Batch whole = batch_of(lengths);
        const int64_t tokens = whole.num_tokens(), count = (tokens + ranks - 1) / ranks;
        const Batch part = part_of(whole, *group);
        ASSERT_EQ(part.num_tokens(), count);
        EXPECT_EQ(part.offsets.front(), 0);
        EXPECT_EQ(part.offsets.back(), count);
        EXPECT_TRUE(std::ranges::is_sorted(part.offsets, std::less_equal()));
        EXPECT_EQ(part.whole->offsets.back(), count * ranks);
        EXPECT_EQ(part.num_real_tokens(),
                  std::clamp<int64_t>(tokens - group->rank() * count, 0, count));
        EXPECT_EQ(part.whole->num_real_tokens(), tokens);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t token = group->rank() * count + i;
          const auto at = [&](const at::Tensor& x) { return x[i].item<int64_t>(); };
          if (token < tokens) {
            EXPECT_EQ(at(part.ids), 100 + token);
            EXPECT_EQ(at(part.targets), 200 + token);
            EXPECT_EQ(at(part.token_keys), 300 + token);
            EXPECT_EQ(at(part.positions), whole.positions[token].item<int64_t>());
          } else {
            EXPECT_EQ(at(part.targets), -100);
            EXPECT_LT(at(part.token_keys), 0);
            EXPECT_EQ(at(part.positions), token - tokens);
          }
        }
        group->barrier();  // rank 0 keeps the place where the others meet
      });
    }
  }
}

TEST(HeadShareError, NamesTheRanksThatCanShare) {
  EXPECT_EQ(head_share_error(32, 8, 8), "");
  EXPECT_EQ(head_share_error(32, 8, 16), "");
  EXPECT_EQ(head_share_error(14, 2, 7),
            "found 7 ranks to share 14 heads of queries and 2 of keys "
            "and values, expected one of 1, 2, 14");
  EXPECT_EQ(head_share_error(12, 1, 5),
            "found 5 ranks to share 12 heads of queries and 1 of keys "
            "and values, expected one of 1, 2, 3, 4, 6, 12");
}

}  // namespace
}  // namespace strata::nn
