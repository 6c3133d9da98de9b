#include "strata/nn/low_rank.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/libtorch/plain_view.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/dropout.h"
#include "strata/ops/dropout_keys.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::nn {
namespace {

// Whether one product with all A, one below the other, gives what one with each would, and all
// are scaled alike.
bool is_one_product(const LowRankGroup& group, const DropoutDraw& draw) {
  const LowRankBranch& first = *group[0];
  return std::ranges::none_of(group, [&](const LowRankBranch* branch) {
    return drops(*branch, draw) || branch->scaling != first.scaling ||
           branch->a.value().scalar_type() != first.a.value().scalar_type();
  });
}

// [sum of r, in_features].
at::Tensor stacked_a(const LowRankGroup& group) {
  if (group.size() == 1) return group[0]->a.value();
  std::vector<at::Tensor> parts;
  for (const LowRankBranch* branch : group) parts.push_back(branch->a.value());
  const at::Tensor joined = joined_rows(parts);
  return joined.defined() ? joined : at::cat(parts);
}

// `scaled`: A's output times the branch's factor.
void write_b_gradients(const at::Tensor& dy, const at::Tensor& scaled, LowRankBranch& branch) {
  if (branch.b.requires_grad()) branch.b.accumulate_grad_product(dy, scaled);
  if (branch.bias && branch.bias->requires_grad()) {
    // In fp32, as a layer's own bias: the sum must not depend on how tokens are spread over ranks.
    const at::Tensor sum = dy.sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat);
    branch.bias->accumulate_grad(sum * branch.scaling);
  }
}

// The gradient of an input, and what it is multiplied by before branches add to it.
struct InputGradient {
  at::Tensor tensor;  // undefined: not wanted
  float beta;

  void add(const at::Tensor& dhidden, const at::Tensor& a) const {
    if (beta == 0) {
      ops::thin_product_into(tensor, dhidden, a, 1.0);
    } else {
      ops::add_thin_product_(tensor, dhidden, a, 1.0);
    }
  }
};

// From the gradient of A's output [T, r] to A's own and the input's.
void backward_to_input(const at::Tensor& dhidden, const at::Tensor& x, LowRankBranch& branch,
                       const DropoutDraw& draw, const InputGradient& dx) {
  if (branch.a.requires_grad()) {
    branch.a.accumulate_grad_product(dhidden, branch_input(x, branch, draw));
  }
  if (!dx.tensor.defined()) return;
  if (!drops(branch, draw)) {
    dx.add(dhidden, branch.a.value());
  } else {
    ops::add_dropout_backward_(dx.tensor, ops::thin_product(dhidden, branch.a.value()),
                               branch.dropout, draw.token_keys,
                               dropout_key(draw.draw, branch.layer_id));
  }
}

bool any_a_trains(const LowRankGroup& group) {
  return std::ranges::any_of(group, [](const LowRankBranch* b) { return b->a.requires_grad(); });
}

// The gradients of all A as one, where they lie one after the other, as the factors of a block do
// (shard/unit); else of an undefined tensor.
GradTarget joined_target(const std::vector<GradTarget>& targets) {
  std::vector<at::Tensor> tensors;
  for (const GradTarget& target : targets) {
    if (!target.tensor.defined() || target.beta != targets[0].beta) return {};
    tensors.push_back(target.tensor);
  }
  return {joined_rows(tensors), targets[0].beta};
}

// `dhidden` [T, sum of r]; x of its type.
void write_a_gradients(const at::Tensor& dhidden, const at::Tensor& x, const LowRankGroup& group) {
  std::vector<GradTarget> targets;
  for (LowRankBranch* branch : group) {
    targets.push_back(branch->a.requires_grad() ? branch->a.grad() : GradTarget{});
  }
  if (const GradTarget joined = joined_target(targets); joined.tensor.defined()) {
    return write_grad_product(joined, dhidden, x);
  }
  at::Tensor of_all = at::empty({dhidden.size(1), x.size(1)}, dhidden.options().dtype(at::kFloat));
  ops::matmul_into(of_all, dhidden, x, {.a = true}, /*beta=*/0);
  int64_t row = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const int64_t rank = group[i]->a.shape()[0];
    const at::Tensor& target = targets[i].tensor;
    const at::Tensor own = plain_rows(of_all, row, rank);
    if (target.defined()) targets[i].beta == 0 ? target.copy_(own) : target.add_(own);
    row += rank;
  }
}

// The same for a group whose inputs are one: `dhidden` [T, sum of r].
void backward_to_input(const at::Tensor& dhidden, const at::Tensor& x, const LowRankGroup& group,
                       const InputGradient& dx) {
  if (any_a_trains(group)) write_a_gradients(dhidden, x.to(dhidden.scalar_type()), group);
  if (dx.tensor.defined()) dx.add(dhidden, stacked_a(group));
}

}  // namespace

void LowRankBranch::append_parameters(std::vector<Parameter*>& list) {
  list.push_back(&a);
  list.push_back(&b);
  if (bias) list.push_back(bias.get());
  if (magnitude) list.push_back(magnitude.get());
}

bool drops(const LowRankBranch& branch, const DropoutDraw& draw) {
  return branch.dropout > 0 && draw.token_keys.defined();
}

at::Tensor branch_input(const at::Tensor& x, const LowRankBranch& branch, const DropoutDraw& draw) {
  const at::Tensor cast = x.to(branch.a.value().scalar_type());
  if (!drops(branch, draw)) return cast;
  return ops::dropout(cast, branch.dropout, draw.token_keys,
                      dropout_key(draw.draw, branch.layer_id));
}

DropoutDraw DropoutDraw::from(const ForwardContext& context) {
  if (!context.drops() || context.batch == nullptr) return {};
  return {context.batch->token_keys, context.draw};
}

DropoutDraw DropoutDraw::narrow(int64_t start, int64_t length) const {
  if (!token_keys.defined()) return {};
  return {token_keys.narrow(0, start, length), draw};
}

uint64_t dropout_key(const DrawKey& draw, uint64_t layer_id) {
  uint64_t key = ops::mix_key(draw.seed);
  key = ops::mix_key(key ^ static_cast<uint64_t>(draw.step));
  key = ops::mix_key(key ^ static_cast<uint64_t>(draw.micro_step));
  return ops::mix_key(key ^ layer_id);
}

static at::Tensor hidden_of(const at::Tensor& x, const LowRankBranch& branch,
                            const DropoutDraw& draw) {
  return ops::thin_product(branch_input(x, branch, draw), plain_transposed(branch.a.value()));
}

at::Tensor low_rank_hidden(const at::Tensor& x, const LowRankGroup& group,
                           const DropoutDraw& draw) {
  if (is_one_product(group, draw)) {
    return ops::thin_product(x.to(group[0]->a.value().scalar_type()),
                             plain_transposed(stacked_a(group)));
  }
  std::vector<at::Tensor> parts;
  for (const LowRankBranch* branch : group) parts.push_back(hidden_of(x, *branch, draw));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

void add_low_rank_(at::Tensor y, const at::Tensor& hidden, const LowRankBranch& branch) {
  ops::add_thin_product_(y, hidden, plain_transposed(branch.b.value()), branch.scaling);
  if (branch.bias) y.add_(branch.bias->value(), branch.scaling);
}

bool comes_first(const at::Tensor& x, const LowRankGroup& group, const DropoutDraw& draw) {
  return is_for_cuda(x) && !group.empty() && is_one_product(group, draw) &&
         group[0]->a.value().scalar_type() == x.scalar_type();
}

void start_with_low_rank(at::Tensor y, const at::Tensor& hidden, const LowRankBranch& branch) {
  ops::thin_product_into(y, hidden, plain_transposed(branch.b.value()), branch.scaling);
  if (branch.bias) y.add_(branch.bias->value(), branch.scaling);
}

at::Tensor low_rank_forward_(at::Tensor y, const at::Tensor& x, const LowRankBranch& branch,
                             const DropoutDraw& draw) {
  const at::Tensor hidden = hidden_of(x, branch, draw);
  add_low_rank_(std::move(y), hidden, branch);
  return hidden;
}

// The gradient of A's output from dy. On GPUs the product scales by itself, into columns of a
// wider matrix, too.
static void write_hidden_gradient(at::Tensor out, const at::Tensor& dy,
                                  const LowRankBranch& branch) {
  if (is_for_cuda(out)) return ops::thin_product_into(out, dy, branch.b.value(), branch.scaling);
  at::mul_out(out, ops::thin_product(dy, branch.b.value()), branch.scaling);
}

// For branches that are one product, or for a single one.
static void backward_together(const std::vector<at::Tensor>& dy, const LowRankSaved& saved,
                              const LowRankGroup& group, const DropoutDraw& draw,
                              const InputGradient& dx) {
  const bool wants_hidden = any_a_trains(group) || dx.tensor.defined();
  const double scaling = group[0]->scaling;
  const at::Tensor scaled = saved.hidden * scaling;
  // The gradient of A's outputs, side by side.
  const at::Tensor dhidden = wants_hidden ? at::empty_like(saved.hidden) : at::Tensor();
  int64_t column = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    LowRankBranch& branch = *group[i];
    const int64_t rank = branch.a.shape()[0];
    const at::Tensor gradient = dy[i].to(branch.b.value().scalar_type());
    write_b_gradients(gradient, plain_columns(scaled, column, rank), branch);
    if (wants_hidden) {
      write_hidden_gradient(plain_columns(dhidden, column, rank), gradient, branch);
    }
    column += rank;
  }
  if (!wants_hidden) return;
  if (group.size() == 1) {
    backward_to_input(dhidden, saved.x, *group[0], draw, dx);
  } else {
    backward_to_input(dhidden, saved.x, group, dx);
  }
}

void low_rank_backward(const std::vector<at::Tensor>& dy, const LowRankSaved& saved,
                       const LowRankGroup& group, const DropoutDraw& draw, at::Tensor dx,
                       float beta) {
  if (is_one_product(group, draw)) return backward_together(dy, saved, group, draw, {dx, beta});
  int64_t column = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const int64_t rank = group[i]->a.shape()[0];
    const LowRankSaved of_branch{saved.x, plain_columns(saved.hidden, column, rank)};
    backward_together({dy[i]}, of_branch, {group[i]}, draw, {dx, /*beta=*/1});
    column += rank;
  }
}

void low_rank_backward(const at::Tensor& dy, const LowRankSaved& saved, LowRankBranch& branch,
                       const DropoutDraw& draw, at::Tensor dx) {
  backward_together({dy}, saved, {&branch}, draw, {std::move(dx), /*beta=*/1});
}

}  // namespace strata::nn
