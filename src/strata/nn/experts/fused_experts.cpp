#include "strata/nn/experts/fused_experts.h"

#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/experts/expert_matrices.h"
#include "strata/nn/function_state.h"
#include "strata/ops/clamped_swiglu.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/row_sums.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FusedCall {
  FusedExperts experts;
  ExpertRows rows;
  bool wants_output;
  std::function<at::Tensor()> remake = {};  // of x; empty: x is kept
};

// Of codes one matrix is decoded at a time.
void visit_experts(const FusedCall& call, const std::function<void(size_t)>& visit) {
  const FusedExperts& experts = call.experts;
  const bool has_codes = experts.gate_up->quantization() || experts.down->quantization();
  for_each_expert(call.rows, /*at_once=*/call.rows.token.is_cpu() && !has_codes, visit);
}

bool needs_input(const FusedExperts& experts) {
  return experts.gate_up->requires_grad() || experts.gate_up_branch != nullptr;
}

at::Tensor part(const at::Tensor& all, size_t expert) {
  return all.select(0, static_cast<int64_t>(expert));
}

// x W[e] + b[e], for the rows of each expert, and what the branch adds.
at::Tensor project(const FusedCall& call, const at::Tensor& x, const Parameter& weight,
                   const Parameter& bias, const ExpertBranch* branch) {
  const at::Tensor y = at::empty({x.size(0), weight.shape()[2]}, x.options());
  const ExpertMatrices matrices(weight, x.scalar_type());
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    const at::Tensor of_expert = rows_of(y, call.rows, e);
    of_expert.copy_(part(bias.value(), e).expand(of_expert.sizes()));
    ops::matmul_into(of_expert, rows_of(x, call.rows, e), matrices.of(e), {}, /*beta=*/1);
  });
  if (branch != nullptr) add_expert_branch_({y}, x, *branch, call.rows);
  return y;
}

// dy W[e]^T.
at::Tensor project_back(const FusedCall& call, const at::Tensor& dy, const Parameter& weight) {
  const at::Tensor dx = at::empty({dy.size(0), weight.shape()[1]}, dy.options());
  const ExpertMatrices matrices(weight, dy.scalar_type());
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    ops::matmul_into(rows_of(dx, call.rows, e), rows_of(dy, call.rows, e), matrices.of(e),
                     {.b = true},
                     /*beta=*/0);
  });
  return dx;
}

// The gradient of a parameter of all experts, a^T b of each expert's rows; zero of one without
// rows. `a` and `b` may be undefined where the parameter is frozen.
void write_gradient(const FusedCall& call, Parameter& parameter, const at::Tensor& a,
                    const at::Tensor& b) {
  if (!parameter.requires_grad()) return;
  const GradTarget target = parameter.grad();
  visit_experts(call, [&](size_t e) {
    const at::Tensor of_expert = part(target.tensor, e).view({-1, b.size(1)});
    if (call.rows.count(e) > 0) {
      write_grad_product({of_expert, target.beta}, rows_of(a, call.rows, e),
                         rows_of(b, call.rows, e));
    } else if (target.beta == 0) {
      of_expert.zero_();
    }
  });
}

// What the bias of down gives the gradient of each row's weight, fp32 [S, 1].
at::Tensor products_with_bias(const FusedCall& call, const at::Tensor& dy) {
  const at::Tensor products = at::empty({dy.size(0), 1}, dy.options().dtype(at::kFloat));
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    const at::Tensor bias = part(call.experts.down_bias->value(), e).unsqueeze(1);
    ops::matmul_into(rows_of(products, call.rows, e), rows_of(dy, call.rows, e), bias, {},
                     /*beta=*/0);
  });
  return products;
}

// From dy [T, hidden] back to the gates: writes the gradients of down and its biases, turns
// `gate_up` into its gradient and returns that of the weights, [T, k].
at::Tensor backward_out(const FusedCall& call, const at::Tensor& dy, const at::Tensor& weights,
                        const at::Tensor& gate_up) {
  const FusedExperts& experts = call.experts;
  const at::Tensor dy_rows = spread(dy, call.rows);
  // The router rounded them to this type before.
  const at::Tensor scales = weights_of_rows(weights, call.rows).to(gate_up.scalar_type());
  at::Tensor gated = ops::clamped_swiglu(gate_up, experts.gate);
  // With the row's weight at the gated side, the result of down is needed for no gradient.
  const bool needs_gated = experts.down->requires_grad() || experts.down_branch != nullptr;
  at::Tensor scaled = needs_gated ? gated * scales : at::Tensor();
  write_gradient(call, *experts.down, scaled, dy_rows);
  if (experts.down_branch == nullptr) scaled.reset();
  write_gradient(call, *experts.down_bias, scales, dy_rows);
  const at::Tensor dgated = project_back(call, dy_rows, *experts.down);
  if (experts.down_branch != nullptr) {
    expert_branch_backward({dy_rows}, scaled, *experts.down_branch, call.rows, dgated);
  }
  const at::Tensor of_bias = products_with_bias(call, dy_rows);
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor dscales =
      gated.mul_(dgated).sum(at::IntArrayRef{1}, /*keepdim=*/true, at::kFloat).add_(of_bias);
  dgated.mul_(scales);
  ops::clamped_swiglu_backward_(gate_up, dgated, experts.gate);
  return weights_of_tokens(dscales.squeeze(1), call.rows, weights);
}

// Writes the gradients of gate_up and its biases and, where it is wanted, returns that of x.
at::Tensor backward_in(const FusedCall& call, const at::Tensor& x, const at::Tensor& dgate_up,
                       int64_t num_tokens, bool wants_dx) {
  const FusedExperts& experts = call.experts;
  at::Tensor input = x.defined() ? spread(x, call.rows) : x;
  write_gradient(call, *experts.gate_up, input, dgate_up);
  if (experts.gate_up_branch == nullptr) input.reset();
  write_gradient(call, *experts.gate_up_bias, at::ones({dgate_up.size(0), 1}, dgate_up.options()),
                 dgate_up);
  at::Tensor dinput;
  if (wants_dx) dinput = project_back(call, dgate_up, *experts.gate_up);
  if (experts.gate_up_branch != nullptr) {
    expert_branch_backward({dgate_up}, input, *experts.gate_up_branch, call.rows, dinput);
  }
  if (!wants_dx) return {};
  return ops::row_sums(dinput, call.rows.place, num_tokens, {});
}

struct FusedExpertsFunction : torch::autograd::Function<FusedExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, FusedCall call, const at::Tensor& x,
                            const at::Tensor& weights, const at::Tensor& residual) {
    const FusedExperts& experts = call.experts;
    const at::Tensor gate_up = project(call, spread(x, call.rows), *experts.gate_up,
                                       *experts.gate_up_bias, experts.gate_up_branch);
    at::Tensor y = at::empty_strided(residual.sizes(), {0, 0}, residual.options());
    if (call.wants_output) {
      const at::Tensor out = project(call, ops::clamped_swiglu(gate_up, experts.gate),
                                     *experts.down, *experts.down_bias, experts.down_branch);
      y = ops::row_sums(out, call.rows.place, x.size(0), weights);
      y.add_(residual);
    }
    const bool keeps_input = needs_input(experts);
    if (!keeps_input) call.remake = nullptr;
    context->save_for_backward({keeps_input && !call.remake ? x : at::Tensor(), gate_up, weights});
    save_state(context, std::move(call));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = take_state<FusedCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = call.remake ? call.remake() : saved[0];
    // Nobody else reads it, and a graph runs backward once: its memory takes the gradient.
    const at::Tensor dgate_up = saved[1].detach();
    const at::Tensor dweights = backward_out(call, gradients[0], saved[2], dgate_up);
    const bool wants_dx = context->needs_input_grad(0);
    const at::Tensor dx = backward_in(call, x, dgate_up, gradients[0].size(0), wants_dx);
    return {at::Tensor(), dx, dweights, gradients[0]};
  }
};

}  // namespace

at::Tensor add_fused_experts_last(const FusedExperts& experts, const Remakable& x,
                                  const at::Tensor& residual, const Routing& routing,
                                  const ForwardContext& context) {
  FusedCall call{.experts = experts,
                 .rows = sort_by_expert(routing.experts, experts.num_experts()),
                 .wants_output = context.pass.wants_output};
  if (context.pass.remakes_inputs) call.remake = x.remake;
  return FusedExpertsFunction::apply(std::move(call), x.value, routing.weights, residual);
}

}  // namespace strata::nn
