// Oracle: the formulas of PEFT's merge() in double precision, over rows of every kind of block.
#include "strata/adapters/merged_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::adapters {
namespace {

at::Tensor random(at::IntArrayRef shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, at::kFloat);
}

at::Tensor merged(const at::Tensor& weight, const Branch& branch) {
  at::Tensor result = at::empty_like(weight);
  add_branch(weight, branch, result);
  return result;
}

at::Tensor exact(const at::Tensor& weight, const Branch& branch) {
  at::Tensor sum =
      weight.to(at::kDouble) + branch.b.to(at::kDouble).mm(branch.a.to(at::kDouble)) * branch.scale;
  if (!branch.magnitude.defined()) return sum;
  return sum * (branch.magnitude.to(at::kDouble) / at::linalg_vector_norm(sum, 2, 1)).unsqueeze(1);
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_LT((found.to(at::kDouble) - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST(MergedWeight, ByHand) {
  const at::Tensor w = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2});
  const Branch branch{.a = at::tensor({1.0f, 0.0f}).view({1, 2}),
                      .b = at::tensor({2.0f, 4.0f}).view({2, 1}),
                      .magnitude = {},
                      .scale = 0.5};
  EXPECT_TRUE(at::equal(merged(w, branch), at::tensor({2.0f, 2.0f, 5.0f, 4.0f}).view({2, 2})));
}

// The second has more rows than are widened at once.
TEST(MergedWeight, LoraAndDora) {
  for (const int64_t rows : {5, 3000}) {
    const int64_t columns = rows == 5 ? 7 : 1000;
    const at::Tensor w = random({rows, columns}, 1);
    Branch branch{
        .a = random({3, columns}, 2), .b = random({rows, 3}, 3), .magnitude = {}, .scale = 0.7};
    expect_close(merged(w, branch), exact(w, branch));
    branch.magnitude = random({rows}, 4).abs();
    expect_close(merged(w, branch), exact(w, branch));
    const at::Tensor lengths = at::linalg_vector_norm(merged(w, branch), 2, 1);
    EXPECT_TRUE(at::allclose(lengths, branch.magnitude, 1e-5));
  }
}

TEST(MergedWeight, IsRoundedOnceAndMayTakeTheWeightsPlace) {
  const at::Tensor w = random({4, 6}, 1).to(at::kBFloat16);
  const Branch branch{.a = random({2, 6}, 2), .b = random({4, 2}, 3), .magnitude = {}, .scale = 2};
  const at::Tensor wide = merged(w.to(at::kFloat), branch);
  at::Tensor in_place = w.clone();
  add_branch(in_place, branch, in_place);
  EXPECT_TRUE(at::equal(in_place, wide.to(at::kBFloat16)));
}

// nn::ExpertBranch: rows e * r .. of A; column j * experts + e of B.
TEST(MergedWeight, EachExpertHasItsOwnPart) {
  const int64_t experts = 3, in = 5, out = 4, rank = 2;
  const at::Tensor w = random({experts, in, out}, 1);
  const at::Tensor a = random({experts * rank, in}, 2), b = random({out, rank * experts}, 3);
  at::Tensor result = at::empty_like(w);
  add_expert_branches(w, a, b, 0.5, result);
  for (int64_t e = 0; e < experts; ++e) {
    at::Tensor expected = w[e].to(at::kDouble);
    for (int64_t j = 0; j < rank; ++j) {
      const at::Tensor row = a[e * rank + j].to(at::kDouble);
      const at::Tensor column = b.select(1, j * experts + e).to(at::kDouble);
      expected = expected + at::outer(row, column) * 0.5;
    }
    expect_close(result[e], expected);
  }
}

// Lambda_b B Lambda_d A, of matrices that are cut to the layer's size.
TEST(MergedWeight, VeraIsABranchOfSharedMatrices) {
  const nn::VeraProjection projection{.a = random({2, 9}, 1), .b = random({8, 2}, 2)};
  const at::Tensor b = random({4}, 3), d = random({2}, 4);
  const Branch branch = vera_branch(projection, b, d, {4, 6});
  const at::Tensor expected =
      at::diag(b).mm(projection.b.slice(0, 0, 4)).mm(at::diag(d)).mm(projection.a.slice(1, 0, 6));
  expect_close(branch.b.mm(branch.a) * branch.scale, expected.to(at::kDouble));
}

}  // namespace
}  // namespace strata::adapters
