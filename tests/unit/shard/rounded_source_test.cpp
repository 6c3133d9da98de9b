// Oracle: the whole tensor rounded at once, to the bit.
#include "strata/shard/rounded_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::shard {
namespace {

constexpr int64_t kSmallPiece = int64_t{1} << 19;
constexpr int64_t kNumel = 2 * kSmallPiece + 7;

at::Tensor whole() { return at::sin(at::arange(kNumel, at::kDouble)); }

TEST(RoundedSource, RoundsSmallPiecesAsTheWhole) {
  const nn::Parameter parameter("a.weight", {kNumel}, at::kFloat);
  const at::Tensor values = whole();
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    int64_t most = 0;
    const Source source =
        rounded_source(type, [&](const nn::Parameter& of, int64_t begin, const at::Tensor& out) {
          EXPECT_EQ(&of, &parameter);
          EXPECT_EQ(out.scalar_type(), type);
          most = std::max(most, out.numel());
          out.copy_(values.narrow(0, begin, out.numel()));
          return true;
        });
    const at::Tensor expected = values.to(type).to(at::kFloat);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, kNumel},
                                       {5, kSmallPiece},
                                       {kSmallPiece - 1, kSmallPiece + 1},
                                       {kNumel - 3, 3}}) {
      const at::Tensor out = at::full({count}, NAN);
      EXPECT_TRUE(source(parameter, begin, out));
      EXPECT_TRUE(at::equal(out, expected.narrow(0, begin, count))) << begin << " " << count;
    }
    EXPECT_EQ(most, kSmallPiece);
  }
}

TEST(RoundedSource, AHomeOfTheTypeIsFilledAtOnce) {
  const nn::Parameter parameter("a.weight", {kNumel}, at::kBFloat16);
  int calls = 0;
  const at::Tensor home = at::zeros({kNumel}, at::kBFloat16);
  const Source source = rounded_source(
      at::kBFloat16, [&](const nn::Parameter&, int64_t begin, const at::Tensor& out) {
        ++calls;
        EXPECT_EQ(begin, 3);
        EXPECT_TRUE(out.is_same(home));
        return true;
      });
  EXPECT_TRUE(source(parameter, 3, home));
  EXPECT_EQ(calls, 1);
}

TEST(RoundedSource, WhatTheSourceDoesNotKnowStays) {
  const nn::Parameter parameter("a.weight", {kNumel}, at::kFloat);
  const Source source = rounded_source(
      at::kBFloat16, [](const nn::Parameter&, int64_t, const at::Tensor&) { return false; });
  const at::Tensor out = at::full({kNumel}, 7.0);
  EXPECT_FALSE(source(parameter, 0, out));
  EXPECT_TRUE(out.eq(7).all().item<bool>());
}

}  // namespace
}  // namespace strata::shard
