#include "strata/nn/dora.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/nn/weight_product.h"
#include "strata/ops/dropout.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

// Rows of the sum W + scaling * B A that exist at once.
constexpr int64_t kRows = 512;

at::Tensor weight_product(const at::Tensor& x, const Parameter& weight, Purpose purpose) {
  const int64_t out = weight.shape()[weight.is_transposed() ? 1 : 0];
  at::Tensor y = at::empty({x.size(0), out}, x.options());
  forward_product_into(y, x, weight, /*beta=*/0, purpose);
  return y;
}

}  // namespace

at::Tensor dora_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                          double scaling) {
  const int64_t rows = weight.size(0);
  at::Tensor norms = at::empty({rows}, a.options().dtype(at::kFloat));
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t count = std::min(kRows, rows - row);
    const at::Tensor sum =
        weight.narrow(0, row, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    ops::add_thin_product_(sum, b.narrow(0, row, count).to(at::kFloat), a.to(at::kFloat), scaling);
    norms.narrow(0, row, count).copy_(at::linalg_vector_norm(sum, 2, {1}));
  }
  return norms;
}

at::Tensor dora_row_norms(const Parameter& weight, const LowRankBranch& branch) {
  at::Tensor dense = weight.quantization() ? weight.dense_value(at::kFloat) : weight.value();
  if (weight.is_transposed()) dense = dense.t().contiguous();
  return dora_row_norms(dense, branch.a.value(), branch.b.value(), branch.scaling);
}

DoraSaved dora_forward_(at::Tensor y, const at::Tensor& x, const Parameter& weight,
                        const LowRankBranch& branch, const DoraCall& call) {
  DoraSaved saved;
  saved.norms = call.norms;
  const at::Tensor base = weight_product(x, weight, call.purpose);
  const bool dropped = drops(branch, call.draw);
  const at::Tensor of_branch =
      dropped ? weight_product(branch_input(x, branch, call.draw).to(x.scalar_type()), weight,
                               call.purpose)
              : base;
  saved.rows = of_branch.clone();
  saved.hidden = low_rank_forward_(saved.rows, x, branch, call.draw);
  const at::Tensor scale = branch.magnitude->value().to(at::kFloat) / saved.norms;
  if (dropped) y.add_(base).sub_(of_branch);
  y.add_(saved.rows * scale);
  return saved;
}

void dora_backward(const at::Tensor& dy, const at::Tensor& x, const DoraSaved& saved,
                   const Parameter& weight, LowRankBranch& branch, const DropoutDraw& draw,
                   at::Tensor dx, float beta) {
  if (branch.magnitude->requires_grad()) {
    const at::Tensor sum = (dy.to(at::kFloat) * saved.rows).sum(0);
    branch.magnitude->accumulate_grad(sum / saved.norms);
  }
  const at::Tensor scale = branch.magnitude->value().to(at::kFloat) / saved.norms;
  const at::Tensor scaled = (dy * scale).to(dy.scalar_type());
  if (dx.defined() && !drops(branch, draw)) {
    multiply_by_weight_back_into(dx, scaled, weight, beta);
  } else if (dx.defined()) {
    multiply_by_weight_back_into(dx, dy, weight, beta);
    at::Tensor of_dropped = at::empty_like(dx);
    multiply_by_weight_back_into(of_dropped, scaled - dy, weight, /*beta=*/0);
    ops::add_dropout_backward_(dx, of_dropped, branch.dropout, draw.token_keys,
                               dropout_key(draw.draw, branch.layer_id));
  }
  low_rank_backward(scaled, {x, saved.hidden}, branch, draw, dx);
}

}  // namespace strata::nn
