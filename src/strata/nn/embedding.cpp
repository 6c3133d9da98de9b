#include "strata/nn/embedding.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/ops/embedding.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of the vocabulary whose sum with the branch exists at once.
constexpr int64_t kRowsAtOnce = 512;

struct EmbeddingCall {
  Parameter* weight;
  std::optional<int64_t> padding_id;
  at::Tensor ids;
  EmbeddingBranch* branch = nullptr;
  TokenRows* rows = nullptr;
  // DoRA: the rows before they are scaled, fp32 [T, H], and the lengths of the columns.
  at::Tensor unscaled = {}, norms = {};
};

// The tokens that give gradients, with theirs: all but padding.
std::pair<at::Tensor, at::Tensor> without_padding(const EmbeddingCall& call, at::Tensor dy) {
  // Without data (the memory plan) no row is known to be padding.
  if (!call.padding_id.has_value() || call.ids.is_meta()) return {call.ids, dy};
  const at::Tensor rows = call.ids.ne(*call.padding_id).nonzero().view(-1);
  if (rows.numel() == call.ids.numel()) return {call.ids, dy};
  return {call.ids.index_select(0, rows), dy.index_select(0, rows)};
}

void add_branch_(at::Tensor out, const at::Tensor& ids, const EmbeddingBranch& branch) {
  const at::Tensor hidden = branch.a.value().index_select(1, ids);  // [r, T]
  const at::Tensor sum =
      ops::thin_product(hidden.t(), branch.b.value().t().to(hidden.scalar_type()))
          .mul_(branch.scaling);
  out.add_(sum);
}

// Scales `out`, which holds the sum, and keeps what the backward pass needs.
void bring_to_length_(at::Tensor out, EmbeddingCall& call) {
  const EmbeddingBranch& branch = *call.branch;
  call.norms =
      dora_column_norms(call.weight->value(), branch.a.value(), branch.b.value(), branch.scaling);
  call.unscaled = out.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  out.copy_(call.unscaled * (branch.magnitude->value().to(at::kFloat) / call.norms));
}

// Writes the magnitude's gradient; returns that of the unscaled rows.
at::Tensor length_backward(const EmbeddingCall& call, const at::Tensor& dy) {
  Parameter& magnitude = *call.branch->magnitude;
  const at::Tensor scale = magnitude.value().to(at::kFloat) / call.norms;
  const at::Tensor wide = dy.to(at::kFloat);
  if (magnitude.requires_grad()) {
    magnitude.accumulate_grad((wide * call.unscaled).sum(0) / call.norms);
  }
  return wide * scale;
}

// Padding gives A no gradient, as the table that it is; B is a factor of what comes out.
void branch_backward(const EmbeddingCall& call, const at::Tensor& dy) {
  EmbeddingBranch& branch = *call.branch;
  const at::Tensor& a = branch.a.value();
  if (branch.b.requires_grad()) {
    const at::Tensor hidden = a.index_select(1, call.ids);
    const at::Tensor scaled = dy.to(a.scalar_type()) * branch.scaling;
    branch.b.accumulate_grad(ops::thin_product(hidden, scaled).t().contiguous());
  }
  if (!branch.a.requires_grad()) return;
  const auto [ids, given] = without_padding(call, dy);
  const at::Tensor scaled = given.to(a.scalar_type()) * branch.scaling;
  const at::Tensor dhidden = ops::thin_product(scaled, branch.b.value());  // [T, r]
  at::Tensor gradient = at::zeros(branch.a.shape(), dhidden.options());
  gradient.index_add_(1, ids, dhidden.t().contiguous());
  branch.a.accumulate_grad(gradient);
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, EmbeddingCall call,
                            const at::Tensor& /*anchor*/) {
    at::Tensor out = ops::embedding(call.weight->value(), call.ids);
    if (call.rows != nullptr) call.rows->replace(call.ids, out);
    if (call.branch != nullptr) add_branch_(out, call.ids, *call.branch);
    if (call.branch != nullptr && call.branch->magnitude) bring_to_length_(out, call);
    save_state(context, std::move(call));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<EmbeddingCall>(context);
    at::Tensor dy = gradients[0].contiguous();
    if (call.branch != nullptr) {
      if (call.branch->magnitude) dy = length_backward(call, dy);
      branch_backward(call, dy);
    }
    if (call.rows != nullptr) {
      dy = dy.clone();
      call.rows->replace_backward(call.ids, call.padding_id, dy);
    }
    if (call.weight->requires_grad()) {
      const GradTarget target = call.weight->grad();
      if (call.padding_id.has_value() && call.ids.is_cuda()) {
        // An id of no row: the kernel passes over it, and the host need not count.
        const at::Tensor ids = call.ids.masked_fill(call.ids.eq(*call.padding_id), -1);
        ops::embedding_backward(dy, ids, target.tensor, target.beta);
      } else {
        const auto [ids, given] = without_padding(call, dy);
        ops::embedding_backward(given, ids, target.tensor, target.beta);
      }
    }
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dora_column_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                             double scaling) {
  const at::Tensor factors = b.to(at::kFloat).t();  // [r, H]
  at::Tensor squares = at::zeros({weight.size(1)}, factors.options());
  for (int64_t row = 0; row < weight.size(0); row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, weight.size(0) - row);
    const at::Tensor sum =
        weight.narrow(0, row, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    ops::add_thin_product_(sum, a.narrow(1, row, count).to(at::kFloat).t(), factors, scaling);
    squares.add_(sum.square().sum(0));
  }
  return squares.sqrt_();
}

at::Tensor embed(const at::Tensor& anchor, const at::Tensor& ids, Parameter& weight,
                 std::optional<int64_t> padding_id) {
  return EmbeddingFunction::apply(
      EmbeddingCall{.weight = &weight, .padding_id = padding_id, .ids = ids}, anchor);
}

void Embedding::append_parameters(std::vector<Parameter*>& list) const {
  list.push_back(weight_.get());
  if (low_rank_) {
    list.push_back(&low_rank_->a);
    list.push_back(&low_rank_->b);
    if (low_rank_->magnitude) list.push_back(low_rank_->magnitude.get());
  }
  if (token_rows_) list.push_back(&token_rows_->rows());
}

at::Tensor Embedding::forward(const at::Tensor& anchor, const at::Tensor& ids) const {
  return EmbeddingFunction::apply(EmbeddingCall{.weight = weight_.get(),
                                                .padding_id = padding_id_,
                                                .ids = ids,
                                                .branch = low_rank_.get(),
                                                .rows = token_rows_.get()},
                                  anchor);
}

}  // namespace strata::nn
