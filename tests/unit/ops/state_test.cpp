// Oracle: torch's fused AdamW; statistics of the dropout mask; sums in double.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference.h"
#include "strata/base/error.h"
#include "strata/ops/adamw.h"
#include "strata/ops/dropout.h"
#include "strata/ops/square_sum.h"

namespace strata::ops {
namespace {

using reference::relative_error;

TEST(AdamW, EqualsTorch) {
  at::manual_seed(7);
  for (int64_t n : {1, 15, 1000}) {
    at::Tensor p = at::randn({n}), m = at::zeros({n}), v = at::zeros({n});
    at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone(), step = at::zeros({});
    for (int64_t s = 1; s <= 5; ++s) {
      const at::Tensor g = at::randn({n});
      adamw_(p, g, m, v,
             {.learning_rate = 0.01,
              .beta1 = 0.9,
              .beta2 = 0.999,
              .eps = 1e-8,
              .weight_decay = 0.1,
              .step = s,
              .grad_scale = 0.5f});
      step.add_(1);
      at::_fused_adamw_({p2}, {g * 0.5}, {m2}, {v2}, {}, {step}, 0.01, 0.9, 0.999, 0.1, 1e-8, false,
                        false);
      EXPECT_LT(relative_error(p, p2), 1e-6);
      EXPECT_LT(relative_error(m, m2), 1e-6);
      EXPECT_LT(relative_error(v, v2), 1e-6);
    }
  }
  // p = 1, g = 1, lr 0.1, weight decay 0.01: 1 - 0.001 - 0.1.
  at::Tensor one = at::ones({1}), m = at::zeros({1}), v = at::zeros({1});
  adamw_(one, at::ones({1}), m, v, {0.1, 0.9, 0.999, 1e-8, 0.01, 1, 1.0f});
  EXPECT_NEAR(one.item<float>(), 0.899, 1e-6);
  EXPECT_THROW(adamw_(one, at::ones({2}), m, v, {0.1, 0.9, 0.999, 1e-8, 0.01, 1, 1.0f}),
               InternalError);
}

// The copy is what libtorch would round, to the bit, and nothing else changes.
TEST(AdamW, WritesItsRoundedCopy) {
  at::manual_seed(9);
  const AdamWStep options{0.01, 0.9, 0.999, 1e-8, 0.1, 2, 0.5f};
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {1, 15, 4096, 70001}) {
      const at::Tensor g = at::randn({n}), p = at::randn({n}) * 1e-3, m = at::randn({n}) * 0.1;
      const at::Tensor v = m.square(), p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
      const at::Tensor copy = at::empty({n}, type);
      adamw_(p, g, m, v, options);
      adamw_(p2, g, m2, v2, options, copy);
      EXPECT_TRUE(at::equal(p2, p) && at::equal(m2, m) && at::equal(v2, v)) << n;
      EXPECT_TRUE(at::equal(copy, p.to(type))) << n;
    }
  }
  at::Tensor one = at::ones({2}), m = at::zeros({2}), v = at::zeros({2});
  EXPECT_THROW(adamw_(one, one, m, v, options, at::empty({2})), InternalError);
  EXPECT_THROW(adamw_(one, one, m, v, options, at::empty({3}, at::kBFloat16)), InternalError);
}

TEST(SquareSum, EqualsDouble) {
  at::manual_seed(8);
  for (int64_t n : {0, 1, 17, 65536, 200001}) {
    const at::Tensor x = at::randn({n});
    const double expected = x.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(square_sum(x), expected, 1e-12 * expected);
    const at::Tensor rounded = x.to(at::kBFloat16);
    const double expected_rounded = rounded.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(square_sum(rounded), expected_rounded, 1e-12 * expected_rounded);
  }
}

TEST(Dropout, KeepsTheShareAndScales) {
  const at::Tensor keys = at::arange(400, at::kLong);
  for (double p : {0.05, 0.5, 0.9}) {
    const at::Tensor y = ops::dropout(at::ones({400, 301}), p, keys, 11);
    const at::Tensor kept = y != 0;
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - p, 5e-3);
    EXPECT_NEAR(y.max().item<float>(), 1 / (1 - p), 1e-5);
    // No row or column stands out by more than five standard deviations.
    const double deviation = std::sqrt(p * (1 - p));
    const at::Tensor rows = kept.to(at::kDouble).mean(1), columns = kept.to(at::kDouble).mean(0);
    EXPECT_LT((rows - (1 - p)).abs().max().item<double>(), 5 * deviation / std::sqrt(301.0));
    EXPECT_LT((columns - (1 - p)).abs().max().item<double>(), 5 * deviation / std::sqrt(400.0));
  }
}

TEST(Dropout, DependsOnKeysAlone) {
  at::manual_seed(9);
  const at::Tensor keys = at::randint(1 << 30, {50}, at::kLong);
  const at::Tensor x = at::rand({50, 40}) + 1;
  const at::Tensor y = ops::dropout(x, 0.4, keys, 3);
  // A row keeps its mask wherever it stands: another rank, another batch.
  const at::Tensor order = at::randperm(50, at::kLong);
  EXPECT_TRUE(at::equal(ops::dropout(x.index_select(0, order), 0.4, keys.index_select(0, order), 3),
                        y.index_select(0, order)));
  EXPECT_TRUE(at::equal(dropout_backward(x, 0.4, keys, 3), y));
  EXPECT_FALSE(at::equal(ops::dropout(x, 0.4, keys, 4), y));
  const at::Tensor mask = y != 0;
  EXPECT_TRUE(at::equal(ops::dropout(x.to(at::kBFloat16), 0.4, keys, 3) != 0, mask));
}

TEST(Dropout, Edges) {
  const at::Tensor x = at::ones({2, 3}), keys = at::zeros({2}, at::kLong);
  EXPECT_TRUE(ops::dropout(x, 0, keys, 1).is_same(x));
  EXPECT_EQ(ops::dropout(x, 1, keys, 1).abs().max().item<float>(), 0);
  EXPECT_THROW(ops::dropout(x, 1.5, keys, 1), ConfigError);
  EXPECT_THROW(ops::dropout(x, std::nan(""), keys, 1), ConfigError);
}

}  // namespace
}  // namespace strata::ops
