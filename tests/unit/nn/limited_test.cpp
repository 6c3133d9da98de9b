// Oracle: libtorch's clamp in double, differentiated by autograd.
#include "strata/nn/limited.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "gathered.h"

namespace strata::nn {
namespace {

TEST(Limited, ValuesAndGradientsAlsoAtTheLimit) {
  at::manual_seed(3);
  at::Tensor x = at::randn({4, 6});
  x[0][0] = 0.5;
  x[1][1] = -0.5;
  x.requires_grad_(true);
  const at::Tensor x64 = reference_leaf(x), dy = at::randn({4, 6});
  const at::Tensor y = limited(x, 0.5), expected = x64.clamp(-0.5, 0.5);
  EXPECT_TRUE(at::equal(y, x.detach().clamp(-0.5, 0.5)));
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  EXPECT_TRUE(at::equal(x.grad().to(at::kDouble), x64.grad()));
  EXPECT_EQ(x.grad()[0][0].item<float>(), dy[0][0].item<float>());
}

}  // namespace
}  // namespace strata::nn
