#include "strata/nn/experts/swapped_branch.h"

#include <functional>

#include <ATen/ATen.h>

#include "strata/nn/weight_product.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

// In the type of the products, an expert after the other.
struct Factors {
  at::Tensor inwards;   // [experts, in, r]
  at::Tensor outwards;  // [experts, r, out]
};

at::Tensor by_expert_of_b(const at::Tensor& b, const ExpertBranch& branch) {
  return b.view({b.size(0), branch.rank(), branch.num_experts});
}

Factors factors_of(const ExpertBranch& branch, at::ScalarType type) {
  const at::Tensor& a = branch.a.value();
  return {by_expert_of_b(branch.b.value(), branch).permute({2, 0, 1}).to(type).contiguous(),
          a.view({branch.num_experts, branch.rank(), a.size(1)}).to(type)};
}

at::Tensor of_one(const at::Tensor& of_all, size_t expert) {
  return of_all.select(0, static_cast<int64_t>(expert));
}

void visit_busy(const ExpertRows& rows, const std::function<void(size_t)>& visit) {
  for_each_expert(rows, /*at_once=*/rows.token.is_cpu(), [&](size_t e) {
    if (rows.count(e) > 0) visit(e);
  });
}

// x times each expert's of `factors`, or its transpose, in fp32; times the branch's factor, in the
// type of x: [S, r].
at::Tensor scaled_product(const at::Tensor& x, const at::Tensor& factors, bool transposed,
                          const ExpertBranch& branch, const ExpertRows& rows) {
  const at::Tensor sums = at::empty({x.size(0), branch.rank()}, x.options().dtype(at::kFloat));
  visit_busy(rows, [&](size_t e) {
    ops::matmul_into(rows_of(sums, rows, e), rows_of(x, rows, e), of_one(factors, e),
                     {.b = transposed}, /*beta=*/0);
  });
  return sums.mul_(branch.scaling).to(x.scalar_type());
}

void write_a_gradient(const at::Tensor& dy, const at::Tensor& hidden, ExpertBranch& branch,
                      const ExpertRows& rows) {
  const GradTarget target = branch.a.grad();
  if (target.beta == 0) target.tensor.zero_();
  const at::Tensor by_expert =
      target.tensor.view({branch.num_experts, branch.rank(), branch.a.shape()[1]});
  visit_busy(rows, [&](size_t e) {
    write_grad_product({of_one(by_expert, e), target.beta}, rows_of(hidden, rows, e),
                       rows_of(dy, rows, e));
  });
}

void write_b_gradient(const at::Tensor& dhidden, const at::Tensor& x, ExpertBranch& branch,
                      const ExpertRows& rows) {
  const at::Tensor by_expert = at::zeros({branch.num_experts, branch.b.shape()[0], branch.rank()},
                                         x.options().dtype(at::kFloat));
  visit_busy(rows, [&](size_t e) {
    ops::matmul_into(of_one(by_expert, e), rows_of(x, rows, e), rows_of(dhidden, rows, e),
                     {.a = true}, /*beta=*/0);
  });
  const GradTarget target = branch.b.grad();
  const at::Tensor in_place = by_expert_of_b(target.tensor, branch);
  const at::Tensor gradient = by_expert.permute({1, 2, 0});
  target.beta == 0 ? in_place.copy_(gradient) : in_place.add_(gradient);
}

}  // namespace

void add_swapped_branch_(const at::Tensor& y, const at::Tensor& x, const ExpertBranch& branch,
                         const ExpertRows& rows) {
  const Factors factors = factors_of(branch, x.scalar_type());
  const at::Tensor hidden = scaled_product(x, factors.inwards, /*transposed=*/false, branch, rows);
  visit_busy(rows, [&](size_t e) {
    ops::matmul_into(rows_of(y, rows, e), rows_of(hidden, rows, e), of_one(factors.outwards, e), {},
                     /*beta=*/1);
  });
}

void swapped_branch_backward(const at::Tensor& dy, const at::Tensor& x, ExpertBranch& branch,
                             const ExpertRows& rows, const at::Tensor& dx) {
  const Factors factors = factors_of(branch, dy.scalar_type());
  if (branch.a.requires_grad()) {
    write_a_gradient(dy, scaled_product(x, factors.inwards, /*transposed=*/false, branch, rows),
                     branch, rows);
  }
  if (!branch.b.requires_grad() && !dx.defined()) return;
  const at::Tensor dhidden =
      scaled_product(dy, factors.outwards, /*transposed=*/true, branch, rows);
  if (branch.b.requires_grad()) write_b_gradient(dhidden, x, branch, rows);
  if (!dx.defined()) return;
  visit_busy(rows, [&](size_t e) {
    ops::matmul_into(rows_of(dx, rows, e), rows_of(dhidden, rows, e), of_one(factors.inwards, e),
                     {.b = true}, /*beta=*/1);
  });
}

}  // namespace strata::nn
