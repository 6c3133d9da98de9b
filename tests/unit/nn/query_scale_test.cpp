// Oracle: the factors by their definition in fp64, and the rounding of each family's reference.
#include "strata/nn/attention/query_scale.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::nn {
namespace {

constexpr int64_t kTokens = 21;

at::Tensor scaled(const at::Tensor& q, const QueryScale& scale) {
  const Batch batch{.ids = at::zeros({kTokens}, at::kLong),
                    .positions = at::arange(kTokens),
                    .offsets = {0, kTokens}};
  ForwardContext context;
  context.batch = &batch;
  return scaled_by_position(q, scale, /*num_before=*/0, context);
}

at::Tensor factors_of(const QueryScale& scale) {
  const at::Tensor factors = at::empty({kTokens, 1}, at::kDouble);
  for (int64_t t = 0; t < kTokens; ++t) {
    const double turns =
        std::floor(static_cast<double>(t + scale.first) / static_cast<double>(scale.length));
    factors[t][0] = 1 + scale.beta * std::log(1 + turns);
  }
  return factors;
}

at::Tensor queries() {
  at::manual_seed(3);
  return at::randn({kTokens, 6}).to(at::kBFloat16);
}

TEST(QueryScale, RoundsTheProductAloneAsLlama4Does) {
  const QueryScale scale{.beta = 0.1, .length = 4, .first = 1};
  const at::Tensor q = queries();
  EXPECT_TRUE(
      at::equal(scaled(q, scale), (q * factors_of(scale).to(at::kFloat)).to(at::kBFloat16)));
}

TEST(QueryScale, RoundsTheFactorBeforeAsMinistralDoes) {
  const QueryScale scale{.beta = 0.1, .length = 4, .rounds_factor = true};
  const at::Tensor q = queries();
  EXPECT_TRUE(at::equal(scaled(q, scale), q * factors_of(scale).to(at::kBFloat16)));
}

TEST(QueryScale, LeavesShortTextsAlone) {
  const at::Tensor q = queries();
  EXPECT_TRUE(scaled(q, {.beta = 0.1, .length = kTokens}).is_same(q));
  EXPECT_FALSE(scaled(q, {.beta = 0.1, .length = kTokens, .first = 1}).is_same(q));
}

}  // namespace
}  // namespace strata::nn
