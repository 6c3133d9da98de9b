// Oracle: the moments of a uniform distribution, and that the same keys draw the same.
#include "strata/ops/uniform_noise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::ops {
namespace {

at::Tensor noise(const at::Tensor& keys, int64_t channels, double magnitude, uint64_t key,
                 at::ScalarType type = at::kFloat) {
  at::Tensor x = at::zeros({keys.size(0), channels}, type);
  add_uniform_noise_(x, magnitude, keys, key);
  return x.to(at::kDouble);
}

TEST(UniformNoise, HasTheMomentsOfAUniformDistribution) {
  const at::Tensor x = noise(at::arange(2000), 501, 0.3, 7);
  EXPECT_LE(x.abs().max().item<double>(), 0.3);
  EXPECT_NEAR(x.max().item<double>(), 0.3, 1e-5);
  EXPECT_NEAR(x.min().item<double>(), -0.3, 1e-5);
  // Ten standard errors of a mean over a million draws.
  EXPECT_NEAR(x.mean().item<double>(), 0, 2e-3);
  EXPECT_NEAR(x.square().mean().item<double>(), 0.03, 3e-4);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 0.3 * 0.3 * 0.3 * 0.3 / 5, 2e-5);
  // Neighbours are unrelated, along the channels and the tokens.
  EXPECT_NEAR((x.narrow(1, 0, 500) * x.narrow(1, 1, 500)).mean().item<double>(), 0, 3e-4);
  EXPECT_NEAR((x.narrow(0, 0, 1999) * x.narrow(0, 1, 1999)).mean().item<double>(), 0, 3e-4);
}

TEST(UniformNoise, IsAFunctionOfKeyTokenAndChannel) {
  const at::Tensor keys = at::tensor({9, 4, 9, 1}, at::kLong);
  const at::Tensor x = noise(keys, 33, 1, 7);
  EXPECT_TRUE(at::equal(x[0], x[2]));
  EXPECT_FALSE(at::equal(x[0], x[1]));
  EXPECT_TRUE(at::equal(x[1], noise(keys.narrow(0, 1, 1), 33, 1, 7)[0]));
  EXPECT_TRUE(at::equal(x.narrow(1, 0, 5), noise(keys, 5, 1, 7)));
  EXPECT_FALSE(at::equal(x, noise(keys, 33, 1, 8)));
}

TEST(UniformNoise, IsAddedAndRounded) {
  const at::Tensor keys = at::arange(40);
  at::Tensor x = at::randn({40, 17}).to(at::kBFloat16);
  const at::Tensor sum = (x.to(at::kDouble) + noise(keys, 17, 0.5, 3)).to(at::kBFloat16);
  add_uniform_noise_(x, 0.5, keys, 3);
  EXPECT_LE((x != sum).sum().item<int64_t>(), 2);  // fp32 sums at the edge between two values
  at::Tensor same = sum.clone();
  add_uniform_noise_(same, 0, keys, 3);
  EXPECT_TRUE(at::equal(same, sum));
}

}  // namespace
}  // namespace strata::ops
