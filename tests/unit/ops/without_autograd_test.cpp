// Oracle: the same arithmetic followed by autograd, and what libtorch says of the mode.
#include "strata/libtorch/without_autograd.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata {
namespace {

at::Tensor gradient_of_cubes(const at::Tensor& at_point) {
  const at::Tensor leaf = at_point.detach().requires_grad_(true);
  const at::Tensor sum = (leaf * leaf.view({3, 2}).t().reshape({6}) * leaf).sum();
  return torch::autograd::grad({sum}, {leaf})[0];
}

TEST(WithoutAutograd, RecordsNothingAndEndsWithItsScope) {
  const at::Tensor x = at::arange(6, at::kFloat).requires_grad_(true);
  {
    const WithoutAutograd plain;
    EXPECT_FALSE((x * 2).requires_grad());
    EXPECT_FALSE(x.view({3, 2}).requires_grad());
    EXPECT_FALSE(x.view({3, 2}).is_view());
  }
  EXPECT_TRUE((x * 2).requires_grad());
  EXPECT_TRUE(x.view({3, 2}).is_view());
}

TEST(WithoutAutograd, DerivativesInsideAreThoseOutside) {
  const at::Tensor x = at::randn({6});
  const at::Tensor outside = gradient_of_cubes(x);
  const WithoutAutograd plain;
  {
    const WithAutograd followed;
    EXPECT_TRUE(at::equal(gradient_of_cubes(x), outside));
  }
  const at::Tensor leaf = x.detach().requires_grad_(true);
  EXPECT_FALSE((leaf * leaf).requires_grad());
}

// What runs a graph backward may do so without autograd: its own derivatives are not followed.
TEST(WithoutAutograd, AGraphRunsBackward) {
  const at::Tensor x = at::randn({6}).requires_grad_(true);
  const at::Tensor followed = torch::autograd::grad({(x.view({3, 2}).t() * 3).exp().sum()}, {x})[0];
  const at::Tensor sum = (x.view({3, 2}).t() * 3).exp().sum();
  const WithoutAutograd plain;
  EXPECT_TRUE(at::equal(torch::autograd::grad({sum}, {x})[0], followed));
}

}  // namespace
}  // namespace strata
