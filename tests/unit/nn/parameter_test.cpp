// Oracle: the invariants I1 and I2 as written in strata/nn/parameter.h.
#include "strata/nn/parameter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::nn {
namespace {

TEST(Parameter, ReadingWhileNotGatheredIsAnError) {
  Parameter p("w", {2, 3}, at::kFloat);
  EXPECT_THROW(p.value(), InternalError);
  p.attach_value(at::ones({6}));
  EXPECT_EQ(p.value().sizes(), at::IntArrayRef({2, 3}));
  p.detach_value();
  EXPECT_THROW(p.value(), InternalError);
}

TEST(Parameter, WrongSizeGatheredIsAnError) {
  Parameter p("w", {2, 3}, at::kFloat);
  EXPECT_THROW(p.attach_value(at::ones({5})), InternalError);
}

TEST(Parameter, GradientWithoutBufferIsAnError) {
  Parameter p("w", {2}, at::kFloat);
  EXPECT_THROW(p.grad(), InternalError);
  EXPECT_THROW(p.accumulate_grad(at::ones({2})), InternalError);
}

TEST(Parameter, FirstUseOverwritesLaterUsesAdd) {
  Parameter p("w", {2}, at::kFloat);
  const at::Tensor buffer = at::full({2}, std::nan(""));
  p.attach_grad(buffer, /*overwrite=*/true);
  p.accumulate_grad(at::full({2}, 3.0));
  p.accumulate_grad(at::full({2}, 4.0));
  EXPECT_TRUE(p.detach_grad());
  EXPECT_TRUE(at::equal(buffer, at::full({2}, 7.0)));
  p.attach_grad(buffer, /*overwrite=*/false);
  p.accumulate_grad(at::full({2}, 1.0));
  EXPECT_TRUE(at::equal(buffer, at::full({2}, 8.0)));
}

TEST(Parameter, UnusedGradientIsReported) {
  Parameter p("w", {2}, at::kFloat);
  p.attach_grad(at::zeros({2}), /*overwrite=*/true);
  EXPECT_FALSE(p.detach_grad());
}

TEST(Parameter, ProductOfAnotherTypeIsAccumulatedInTheBuffersType) {
  Parameter p("w", {3, 2}, at::kFloat);
  const at::Tensor buffer = at::full({3, 2}, std::nan(""));
  p.attach_grad(buffer, /*overwrite=*/true);
  const at::Tensor a = at::randn({5, 3}).to(at::kBFloat16);
  const at::Tensor b = at::randn({5, 2}).to(at::kBFloat16);
  p.accumulate_grad_product(a, b);
  p.accumulate_grad_product(a, b);
  const at::Tensor expected = at::mm(a.to(at::kFloat).t(), b.to(at::kFloat)) * 2;
  EXPECT_TRUE(at::allclose(buffer, expected, 1e-5, 1e-5));
}

}  // namespace
}  // namespace strata::nn
