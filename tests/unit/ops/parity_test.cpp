// Oracle: the same formulas from ATen's elementary operations. What is more than a size of the
// table (op_table.h): where norms round.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/ops/rms_norm.h"

namespace strata::ops {
namespace {

at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1.0) {
  return (at::randn(shape, at::kDouble) * scale).to(type);
}

class Parity : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
};

TEST_F(Parity, RmsNormRoundsLikeLlama) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor expected =
      weight * (x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5)).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5).y;
  // Sums in another order may move a value across a rounding boundary, seldom.
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

TEST_F(Parity, RmsNormRoundsLikeGemma) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5);
  const at::Tensor expected = (normed * (1.0 + weight.to(at::kFloat))).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5, RmsNormKind::kGemma).y;
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

TEST_F(Parity, RmsNormRoundsLikeOlmo) {
  const at::Tensor x = random({40, 96}, at::kBFloat16);
  const at::Tensor weight = random({96}, at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + 1e-5);
  const at::Tensor expected = (weight * normed).to(at::kBFloat16);
  const at::Tensor actual = rms_norm(x, weight, 1e-5, RmsNormKind::kOlmo).y;
  EXPECT_LT((actual != expected).sum().item<int64_t>(), 5);
}

}  // namespace
}  // namespace strata::ops
