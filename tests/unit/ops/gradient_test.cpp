// Oracle: central differences of the ops themselves, along random directions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "strata/ops/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/swiglu.h"

namespace strata::ops {
namespace {

// Compares sum(gradient * direction) with the slope of `loss` along a random direction at x.
void expect_slope(const at::Tensor& x, const at::Tensor& gradient,
                  const std::function<double(const at::Tensor&)>& loss) {
  const double step = 1e-2;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const at::Tensor direction = at::randn_like(x);
    const double slope = (loss(x + direction * step) - loss(x - direction * step)) / (2 * step);
    const double expected = (gradient * direction).sum().item<double>();
    EXPECT_NEAR(slope, expected, 2e-2 * std::max(1.0, std::abs(expected)));
  }
}

double weighted(const at::Tensor& y, const at::Tensor& dy) {
  return (y.to(at::kDouble) * dy.to(at::kDouble)).sum().item<double>();
}

class Gradient : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(4); }
};

TEST_F(Gradient, RmsNorm) {
  const at::Tensor x = at::randn({4, 10}), weight = at::randn({10}), dy = at::randn({4, 10});
  at::Tensor dweight = at::empty({10});
  const at::Tensor rstd = rms_norm(x, weight, 1e-5).rstd;
  const at::Tensor dx = rms_norm_backward(dy, x, weight, rstd, dweight, 0);
  expect_slope(x, dx,
               [&](const at::Tensor& v) { return weighted(rms_norm(v, weight, 1e-5).y, dy); });
  expect_slope(weight, dweight,
               [&](const at::Tensor& v) { return weighted(rms_norm(x, v, 1e-5).y, dy); });
}

TEST_F(Gradient, Swiglu) {
  const at::Tensor gate = at::randn({3, 9}), up = at::randn({3, 9}), dy = at::randn({3, 9});
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  swiglu_backward(dy, gate, up, dgate, dup);
  expect_slope(gate, dgate, [&](const at::Tensor& v) { return weighted(swiglu(v, up), dy); });
  expect_slope(up, dup, [&](const at::Tensor& v) { return weighted(swiglu(gate, v), dy); });
}

TEST_F(Gradient, Attention) {
  const std::vector<int64_t> offsets = {0, 1, 6, 9};
  const at::Tensor q = at::randn({9, 4, 5}), k = at::randn({9, 2, 5}), v = at::randn({9, 2, 5});
  const at::Tensor dout = at::randn({9, 4, 5});
  const AttentionResult r = attention(q, k, v, offsets, 0.4);
  const AttentionGradients g = attention_backward(dout, q, k, v, r.out, r.lse, offsets, 0.4);
  auto loss = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return weighted(attention(a, b, c, offsets, 0.4).out, dout);
  };
  expect_slope(q, g.dq, [&](const at::Tensor& x) { return loss(x, k, v); });
  expect_slope(k, g.dk, [&](const at::Tensor& x) { return loss(q, x, v); });
  expect_slope(v, g.dv, [&](const at::Tensor& x) { return loss(q, k, x); });
}

TEST_F(Gradient, CrossEntropy) {
  const at::Tensor logits = at::randn({5, 13}) * 2;
  const at::Tensor targets = at::tensor({3, -100, 0, 12, 7}, at::kLong);
  at::Tensor gradient = logits.clone();
  cross_entropy_(gradient, targets, 1.0f, /*want_gradient=*/true);
  expect_slope(logits, gradient, [&](const at::Tensor& x) {
    return cross_entropy_(x.clone(), targets, 1.0f, /*want_gradient=*/false).loss;
  });
}

}  // namespace
}  // namespace strata::ops
