#include "strata/nn/experts/expert_branch.h"

#include <ATen/ATen.h>

#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

// A and B in the type of the products, an expert after the other.
struct Factors {
  at::Tensor a;  // [experts * r, in]
  at::Tensor b;  // [experts, out, r]
};

Factors factors_of(const ExpertBranch& branch, at::ScalarType type) {
  const at::Tensor& b = branch.b.value();
  const at::Tensor by_expert = b.view({b.size(0), branch.rank(), branch.num_experts});
  return {branch.a.value().to(type), by_expert.permute({2, 0, 1}).to(type).contiguous()};
}

at::Tensor a_of(const Factors& factors, size_t expert) {
  const int64_t rank = factors.b.size(2);
  return factors.a.narrow(0, static_cast<int64_t>(expert) * rank, rank);
}

void visit_busy(const ExpertRows& rows, const std::function<void(size_t)>& visit) {
  for_each_expert(rows, /*at_once=*/rows.token.is_cpu(), [&](size_t e) {
    if (rows.count(e) > 0) visit(e);
  });
}

// Calls `visit` with each part and the rows of `of_expert` [out, r] that are its columns.
void visit_parts(const OutputParts& parts, const at::Tensor& of_expert,
                 const std::function<void(const at::Tensor& part, const at::Tensor& b)>& visit) {
  int64_t row = 0;
  for (const at::Tensor& part : parts) {
    visit(part, of_expert.narrow(0, row, part.size(1)));
    row += part.size(1);
  }
}

at::Tensor of_one(const at::Tensor& of_all, size_t expert) {
  return of_all.select(0, static_cast<int64_t>(expert));
}

// Sums [S, r] in fp32 that `visit` makes, times the branch's factor, in the type of x.
at::Tensor scaled_sums(const at::Tensor& x, const ExpertBranch& branch, const ExpertRows& rows,
                       const std::function<void(size_t, const at::Tensor&)>& make) {
  const at::Tensor sums = at::empty({x.size(0), branch.rank()}, x.options().dtype(at::kFloat));
  visit_busy(rows, [&](size_t e) { make(e, rows_of(sums, rows, e)); });
  return sums.mul_(branch.scaling).to(x.scalar_type());
}

at::Tensor scaled_hidden(const at::Tensor& x, const ExpertBranch& branch, const Factors& factors,
                         const ExpertRows& rows) {
  return scaled_sums(x, branch, rows, [&](size_t e, const at::Tensor& out) {
    ops::matmul_into(out, rows_of(x, rows, e), a_of(factors, e), {.b = true}, /*beta=*/0);
  });
}

at::Tensor scaled_dhidden(const OutputParts& dy, const ExpertBranch& branch, const Factors& factors,
                          const ExpertRows& rows) {
  return scaled_sums(dy[0], branch, rows, [&](size_t e, const at::Tensor& out) {
    float beta = 0;
    visit_parts(dy, of_one(factors.b, e), [&](const at::Tensor& part, const at::Tensor& b) {
      ops::matmul_into(out, rows_of(part, rows, e), b, {}, beta);
      beta = 1;
    });
  });
}

void write_b_gradient(const OutputParts& dy, const at::Tensor& hidden, ExpertBranch& branch,
                      const ExpertRows& rows) {
  const std::vector<int64_t>& shape = branch.b.shape();
  const at::Tensor by_expert =
      at::zeros({branch.num_experts, shape[0], branch.rank()}, hidden.options().dtype(at::kFloat));
  visit_busy(rows, [&](size_t e) {
    visit_parts(dy, of_one(by_expert, e), [&](const at::Tensor& part, const at::Tensor& gradient) {
      ops::matmul_into(gradient, rows_of(part, rows, e), rows_of(hidden, rows, e), {.a = true},
                       /*beta=*/0);
    });
  });
  const GradTarget target = branch.b.grad();
  const at::Tensor in_place = target.tensor.view({shape[0], branch.rank(), branch.num_experts});
  const at::Tensor gradient = by_expert.permute({1, 2, 0});
  target.beta == 0 ? in_place.copy_(gradient) : in_place.add_(gradient);
}

void write_a_gradient(const at::Tensor& dhidden, const at::Tensor& x, ExpertBranch& branch,
                      const ExpertRows& rows) {
  const GradTarget target = branch.a.grad();
  if (target.beta == 0) target.tensor.zero_();
  const at::Tensor by_expert =
      target.tensor.view({branch.num_experts, branch.rank(), branch.a.shape()[1]});
  visit_busy(rows, [&](size_t e) {
    write_grad_product({of_one(by_expert, e), target.beta}, rows_of(dhidden, rows, e),
                       rows_of(x, rows, e));
  });
}

}  // namespace

void ExpertParameter::append_branch(std::vector<Parameter*>& list) const {
  if (branch) list.insert(list.end(), {&branch->a, &branch->b});
}

void add_expert_branch_(const OutputParts& y, const at::Tensor& x, const ExpertBranch& branch,
                        const ExpertRows& rows) {
  const Factors factors = factors_of(branch, x.scalar_type());
  const at::Tensor hidden = scaled_hidden(x, branch, factors, rows);
  visit_busy(rows, [&](size_t e) {
    visit_parts(y, of_one(factors.b, e), [&](const at::Tensor& part, const at::Tensor& b) {
      ops::matmul_into(rows_of(part, rows, e), rows_of(hidden, rows, e), b, {.b = true},
                       /*beta=*/1);
    });
  });
}

void expert_branch_backward(const OutputParts& dy, const at::Tensor& x, ExpertBranch& branch,
                            const ExpertRows& rows, const at::Tensor& dx) {
  const Factors factors = factors_of(branch, dy[0].scalar_type());
  if (branch.b.requires_grad()) {
    write_b_gradient(dy, scaled_hidden(x, branch, factors, rows), branch, rows);
  }
  if (!branch.a.requires_grad() && !dx.defined()) return;
  const at::Tensor dhidden = scaled_dhidden(dy, branch, factors, rows);
  if (branch.a.requires_grad()) write_a_gradient(dhidden, x, branch, rows);
  if (!dx.defined()) return;
  visit_busy(rows, [&](size_t e) {
    ops::matmul_into(rows_of(dx, rows, e), rows_of(dhidden, rows, e), a_of(factors, e), {},
                     /*beta=*/1);
  });
}

}  // namespace strata::nn
