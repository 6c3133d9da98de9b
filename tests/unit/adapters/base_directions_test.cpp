// Oracle: algebra: what is taken off the base is what the branch adds, and Eckart and Young's
// theorem.
#include "strata/adapters/base_directions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/ops/quant/quantized.h"

namespace strata::adapters {
namespace {

at::Tensor weight(int64_t rows, int64_t columns) {
  at::manual_seed(5);
  return at::randn({rows, columns}, at::kFloat);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

LoraOptions with(const char* init) {
  LoraOptions options;
  options.init = init;
  return options;
}

TEST(BaseDirections, IterationsAreTheNumberInTheName) {
  EXPECT_EQ(num_svd_iterations("pissa_niter_4"), 4);
  EXPECT_EQ(num_svd_iterations("pissa_niter_0"), 0);
  for (const char* name : {"pissa", "pissa_niter_", "pissa_niter_4x", "pissa_niter_x", "olora"}) {
    EXPECT_EQ(num_svd_iterations(name), -1) << name;
  }
}

// No product of that rank is nearer: the square of the distance is the sum of the squares of the
// singular values that are left out.
TEST(BaseDirections, TheBestApproximationLeavesTheSmallestValues) {
  const at::Tensor w = weight(8, 6);
  const BaseDirections best = best_approximation(w, 2);
  EXPECT_EQ(best.a.sizes(), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(best.b.sizes(), (std::vector<int64_t>{8, 2}));
  const at::Tensor sizes = std::get<1>(at::linalg_svd(w, false));
  const at::Tensor rest = w - best.b.mm(best.a);
  EXPECT_NEAR(rest.square().sum().item<double>(), sizes.slice(0, 2).square().sum().item<double>(),
              1e-4);
  // Halves of the values in each.
  EXPECT_TRUE(at::allclose(best.a.square().sum(1), best.b.square().sum(0), 1e-4));
}

TEST(BaseDirections, BaseAndBranchAreTheWeight) {
  for (const char* init : {"pissa", "olora"}) {
    for (const auto& [rows, columns] : {std::pair{8, 6}, {5, 9}}) {
      const at::Tensor w = weight(rows, columns);
      const BaseDirections found = base_directions(w, 3, 1.5, with(init));
      EXPECT_LT(distance(found.base + found.b.mm(found.a) * 1.5, w), 1e-5) << init;
    }
  }
}

TEST(BaseDirections, PissaTakesTheLargestValues) {
  const at::Tensor w = weight(8, 6);
  const BaseDirections found = base_directions(w, 2, 0.5, with("pissa"));
  const at::Tensor sizes = std::get<1>(at::linalg_svd(w, false));
  const at::Tensor left = std::get<1>(at::linalg_svd(found.base, false));
  EXPECT_LT(distance(left.slice(0, 0, 4), sizes.slice(0, 2)), 1e-5);
  EXPECT_LT(left.slice(0, 4).max().item<double>(), 1e-5);
}

// A search whose beginning spans everything finds what the exact decomposition finds.
TEST(BaseDirections, ASearchFromEverywhereIsExact) {
  for (const auto& [rows, columns] : {std::pair{8, 4}, {4, 8}}) {
    const at::Tensor w = weight(rows, columns);
    const BaseDirections exact = base_directions(w, 4, 1, with("pissa"));
    const BaseDirections found =
        base_directions(w, 4, 1, with("pissa_niter_2"), at::eye(4, at::kFloat));
    EXPECT_LT(distance(found.b.mm(found.a), exact.b.mm(exact.a)), 1e-5);
    EXPECT_LT(found.base.abs().max().item<double>(), 1e-5);
  }
}

TEST(BaseDirections, OloraHasOrthonormalColumns) {
  const BaseDirections found = base_directions(weight(8, 6), 3, 2, with("olora"));
  EXPECT_LT(distance(found.b.t().mm(found.b), at::eye(3, at::kFloat)), 1e-5);
  // A is the top of a triangle.
  EXPECT_EQ(found.a[1][0].item<float>(), 0);
  EXPECT_EQ(found.a[2][1].item<float>(), 0);
}

TEST(BaseDirections, LoftqsBaseIsWhatTheCodesKeep) {
  const at::Tensor w = weight(64, 64);
  for (const int64_t bits : {4, 8}) {
    LoraOptions options = with("loftq");
    options.loftq_bits = bits;
    ops::quant::Format format;
    format.kind = bits == 8 ? ops::quant::Kind::kInt8 : ops::quant::Kind::kNf4;
    const BaseDirections once = base_directions(w, 4, 1, options);
    const at::Tensor kept = ops::quant::dequantize(ops::quant::quantize(w, format), at::kFloat);
    EXPECT_TRUE(at::equal(once.base, kept)) << bits;
    const BaseDirections best = best_approximation(w - kept, 4);
    EXPECT_TRUE(at::equal(once.b.mm(once.a), best.b.mm(best.a))) << bits;
    // Another time the codes are of what the branch leaves.
    options.loftq_iter = 2;
    const BaseDirections twice = base_directions(w, 4, 1, options);
    const at::Tensor rest = (w - once.b.mm(once.a)).contiguous();
    EXPECT_TRUE(at::equal(twice.base,
                          ops::quant::dequantize(ops::quant::quantize(rest, format), at::kFloat)));
  }
}

}  // namespace
}  // namespace strata::adapters
