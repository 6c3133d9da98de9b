// The formulas of the elementwise update rules. Never: where values lie.
#include "strata/optim/update_rules.h"

#include <array>

#include <ATen/ATen.h>

#include "strata/ops/adamw.h"

namespace strata::optim {
namespace {

constexpr std::array<RuleState, 1> kBuffer = {{{"momentum_buffer", true}}};
constexpr std::array<RuleState, 2> kMoments = {{{"exp_avg", true}, {"exp_avg_sq", false}}};

void adam(at::Tensor param, const at::Tensor& grad, const std::vector<at::Tensor>& state,
          const RuleStep& step, bool is_decoupled) {
  ops::AdamWStep one = adamw_step(step);
  if (!is_decoupled) one.weight_decay = 0;
  if (is_decoupled || step.weight_decay == 0) {
    return ops::adamw_(param, grad, state[0], state[1], one);
  }
  one.grad_scale = 1;
  ops::adamw_(param, (grad * step.grad_scale).add_(param, step.weight_decay), state[0], state[1],
              one);
}

void lion(at::Tensor param, const at::Tensor& grad, const at::Tensor& exp_avg,
          const RuleStep& step) {
  const at::Tensor g = grad * step.grad_scale;
  const at::Tensor direction = (exp_avg * step.beta1).add_(g, 1 - step.beta1).sign_();
  param.mul_(1 - step.learning_rate * step.weight_decay).sub_(direction, step.learning_rate);
  exp_avg.mul_(step.beta2).add_(g, 1 - step.beta2);
}

// The first gradient fills the buffer as it is, whatever the dampening.
void sgd_momentum(at::Tensor param, const at::Tensor& grad, const at::Tensor& buffer,
                  const RuleStep& step) {
  const SgdMomentum& momentum = step.momentum;
  const at::Tensor g = (grad * step.grad_scale).add_(param, step.weight_decay);
  if (step.step == 1) {
    buffer.copy_(g);
  } else {
    buffer.mul_(momentum.factor).add_(g, 1 - momentum.dampening);
  }
  param.sub_(momentum.nesterov ? g.add_(buffer, momentum.factor) : buffer, step.learning_rate);
}

}  // namespace

ops::AdamWStep adamw_step(const RuleStep& step) {
  return {.learning_rate = step.learning_rate,
          .beta1 = step.beta1,
          .beta2 = step.beta2,
          .eps = step.eps,
          .weight_decay = step.weight_decay,
          .step = step.step,
          .grad_scale = step.grad_scale};
}

std::span<const RuleState> state_of(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      return kMoments;
    case Rule::kLion:
      return std::span(kMoments).first(1);
    case Rule::kSgdMomentum:
      return kBuffer;
    case Rule::kSgd:
      break;
  }
  return {};
}

void apply_rule(Rule rule, at::Tensor param, const at::Tensor& grad,
                const std::vector<at::Tensor>& state, const RuleStep& step) {
  switch (rule) {
    case Rule::kAdamW:
      return adam(param, grad, state, step, /*is_decoupled=*/true);
    case Rule::kAdam:
      return adam(param, grad, state, step, /*is_decoupled=*/false);
    case Rule::kLion:
      return lion(param, grad, state[0], step);
    case Rule::kSgdMomentum:
      return sgd_momentum(param, grad, state[0], step);
    case Rule::kSgd:
      param.sub_((grad * step.grad_scale).add_(param, step.weight_decay), step.learning_rate);
  }
}

}  // namespace strata::optim
