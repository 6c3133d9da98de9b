// Update rules that treat every element alike: what they keep and how one step moves a flat range.
// Owns: the formulas. Never: homes, sharding, 8-bit codes (rule_optimizer.h).
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/ops/adamw.h"

namespace strata::optim {

enum class Rule {
  kAdamW,  // torch.optim.AdamW
  kAdam,   // torch.optim.Adam: weight decay is added to the gradient
  kLion,   // Chen et al. 2023, with decoupled weight decay first
  kSgd,    // torch.optim.SGD without momentum
  kSgdMomentum,
};

// One tensor of state: its name in checkpoints, and whether its values have signs (decides the
// 8-bit map).
struct RuleState {
  const char* name;
  bool is_signed;
};
std::span<const RuleState> state_of(Rule rule);

// Of torch.optim.SGD.
struct SgdMomentum {
  double factor = 0, dampening = 0;
  bool nesterov = false;
};

struct RuleStep {
  double learning_rate;
  double beta1, beta2;
  double eps;
  double weight_decay;
  int64_t step;  // number of this update, from 1
  float grad_scale;
  SgdMomentum momentum = {};  // of kSgdMomentum
};

// The same numbers as ops::adamw_ takes them.
ops::AdamWStep adamw_step(const RuleStep& step);

// Moves `param` and `state` (in the order of state_of()); all fp32 [n], contiguous. `grad` is not
// changed.
void apply_rule(Rule rule, at::Tensor param, const at::Tensor& grad,
                const std::vector<at::Tensor>& state, const RuleStep& step);

}  // namespace strata::optim
