// Oracle: the formula in double (activation_cases.h); the same bits with any number of threads.
#include "strata/ops/xielu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "activation_cases.h"
#include "strata/base/error.h"

namespace strata::ops {
namespace {

at::Tensor numbers() { return at::tensor({0.7f, 1.3f, 0.4f, -1e-6f}); }

// Below what exp can tell from 0, near 0, where exp(x) - 1 - x would cancel out, and beyond eps.
TEST(Xielu, ExtremeValues) {
  const at::Tensor x = at::tensor({-1e30f, -300.0f, -88.0f, -1.0f, -0.35f, -0.34f, -0.33f, -1e-2f,
                                   -1e-3f, -1e-5f, -1e-7f, 0.0f, 1e-7f, 1e-3f, 90.0f, 1e15f})
                           .view({1, -1});
  const at::Tensor y64 = reference::xielu(x.to(at::kDouble), numbers().to(at::kDouble));
  EXPECT_TRUE(at::allclose(xielu(x, numbers()).to(at::kDouble), y64, 1e-6, 1e-12));
}

TEST(Xielu, NanStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor x = at::tensor({nan, 1.0f, -1.0f}).view({1, 3});
  const at::Tensor y = xielu(x, numbers());
  EXPECT_TRUE(y.isnan().equal(x.isnan()));
  const at::Tensor own = x.clone();
  const at::Tensor of_alphas = xielu_backward_(own, at::ones({1, 3}), numbers());
  EXPECT_TRUE(own.select(1, 1).isfinite().all().item<bool>());
  EXPECT_TRUE(of_alphas.isnan().any().item<bool>());
}

TEST(Xielu, ThreadsGiveTheSameBits) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({20000, 5}), dy = at::randn({20000, 5});
  const int threads = at::get_num_threads();
  at::Tensor of_x[2], of_alphas[2];
  for (int i = 0; i < 2; ++i) {
    at::set_num_threads(i + 1);
    of_x[i] = x.clone();
    of_alphas[i] = xielu_backward_(of_x[i], dy, numbers());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(of_x[0].equal(of_x[1]));
  EXPECT_TRUE(of_alphas[0].equal(of_alphas[1]));
}

TEST(Xielu, IsWalkedByThePlanAndRefusesWhatDoesNotFit) {
  const at::TensorOptions meta(at::kMeta);
  const at::Tensor x = at::zeros({2, 4}, meta), by = at::zeros({4}, meta);
  EXPECT_TRUE(xielu(x, by).is_meta());
  EXPECT_EQ(xielu_backward_(x, x, by).sizes(), at::IntArrayRef({2}));
  EXPECT_THROW(xielu(at::zeros({2, 4}), at::zeros({3})), InternalError);
  EXPECT_THROW(xielu(at::zeros({4}), numbers()), InternalError);
}

}  // namespace
}  // namespace strata::ops
