#include "strata/nn/low_rank.h"

#include <ATen/ATen.h>

#include "strata/ops/dropout.h"
#include "strata/ops/matmul.h"

namespace strata::nn {
namespace {

// Finalizer of SplitMix64 (Steele et al. 2014): every input bit changes about half the output bits.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
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
  if (!context.training || context.batch == nullptr) return {};
  return {context.batch->token_keys, context.draw};
}

DropoutDraw DropoutDraw::narrow(int64_t start, int64_t length) const {
  if (!token_keys.defined()) return {};
  return {token_keys.narrow(0, start, length), draw};
}

uint64_t dropout_key(const DrawKey& draw, uint64_t layer_id) {
  uint64_t key = mix(draw.seed);
  key = mix(key ^ static_cast<uint64_t>(draw.step));
  key = mix(key ^ static_cast<uint64_t>(draw.micro_step));
  return mix(key ^ layer_id);
}

at::Tensor low_rank_hidden(const at::Tensor& x, const LowRankBranch& branch,
                           const DropoutDraw& draw) {
  return ops::thin_product(branch_input(x, branch, draw), branch.a.value().t());
}

at::Tensor low_rank_forward_(at::Tensor y, const at::Tensor& x, const LowRankBranch& branch,
                             const DropoutDraw& draw) {
  const at::Tensor hidden = low_rank_hidden(x, branch, draw);
  ops::add_thin_product_(y, hidden, branch.b.value().t(), branch.scaling);
  if (branch.bias) y.add_(branch.bias->value(), branch.scaling);
  return hidden;
}

void low_rank_backward(const at::Tensor& dy, const LowRankSaved& saved, LowRankBranch& branch,
                       const DropoutDraw& draw, at::Tensor dx) {
  const at::Tensor gradient = dy.to(branch.b.value().scalar_type());
  if (branch.b.requires_grad()) {
    branch.b.accumulate_grad_product(gradient, saved.hidden * branch.scaling);
  }
  if (branch.bias && branch.bias->requires_grad()) {
    branch.bias->accumulate_grad(gradient.sum(0).mul_(branch.scaling));
  }
  if (!branch.a.requires_grad() && !dx.defined()) return;
  const at::Tensor dhidden = ops::thin_product(gradient, branch.b.value()).mul_(branch.scaling);
  if (branch.a.requires_grad()) {
    branch.a.accumulate_grad_product(dhidden, branch_input(saved.x, branch, draw));
  }
  if (!dx.defined()) return;
  if (!drops(branch, draw)) {
    ops::add_thin_product_(dx, dhidden, branch.a.value(), 1.0);
  } else {
    dx.add_(ops::dropout_backward(ops::thin_product(dhidden, branch.a.value()), branch.dropout,
                                  draw.token_keys, dropout_key(draw.draw, branch.layer_id)));
  }
}

}  // namespace strata::nn
