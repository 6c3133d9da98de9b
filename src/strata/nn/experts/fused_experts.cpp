#include "strata/nn/experts/fused_experts.h"

#include <functional>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/experts/expert_matrices.h"
#include "strata/nn/experts/grouped_product.h"
#include "strata/nn/experts/swapped_branch.h"
#include "strata/nn/function_state.h"
#include "strata/ops/clamped_swiglu.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/row_sums.h"
#include "strata/ops/swiglu.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FusedCall {
  FusedExperts experts;
  ExpertRows rows;
  bool has_residual;
  bool wants_output;
  Purpose purpose;
  std::function<at::Tensor()> remake = {};  // of x; empty: x is kept
};

// If weights are codes, one matrix is decoded at a time.
void visit_experts(const FusedCall& call, const std::function<void(size_t)>& visit) {
  const FusedExperts& experts = call.experts;
  const bool has_codes =
      experts.gate_up.weight->quantization() || experts.down.weight->quantization();
  for_each_expert(call.rows, /*at_once=*/call.rows.token.is_cpu() && !has_codes, visit);
}

bool needs_input(const FusedMatrices& matrices) {
  return matrices.weight->requires_grad() || matrices.branch != nullptr;
}

// Gate and up as halves of each row.
struct Halves {
  at::Tensor gate, up;
};

Halves halves_of(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return {gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width)};
}

at::Tensor gated(const at::Tensor& gate_up, const FusedGate& gate) {
  if (const auto* clamped = std::get_if<ops::ClampedGate>(&gate)) {
    return ops::clamped_swiglu(gate_up, *clamped);
  }
  const auto [gates, ups] = halves_of(gate_up);
  const bool is_silu = std::get<ops::GateKind>(gate) == ops::GateKind::kSilu;
  return is_silu ? ops::swiglu(gates, ups) : ops::geglu(gates, ups);
}

// Turns `gate_up` into its gradient.
void gated_backward_(const at::Tensor& gate_up, const at::Tensor& dy, const FusedGate& gate) {
  if (const auto* clamped = std::get_if<ops::ClampedGate>(&gate)) {
    return ops::clamped_swiglu_backward_(gate_up, dy, *clamped);
  }
  auto [gates, ups] = halves_of(gate_up);
  const bool is_silu = std::get<ops::GateKind>(gate) == ops::GateKind::kSilu;
  (is_silu ? ops::swiglu_backward : ops::geglu_backward)(dy, gates, ups, gates, ups);
}

at::Tensor part(const at::Tensor& all, size_t expert) {
  return all.select(0, static_cast<int64_t>(expert));
}

// x M[e], or by its transpose, for the rows of each expert; added to rows of `biases` [experts,
// out] where they are defined.
at::Tensor multiply(const FusedCall& call, const at::Tensor& x, const Parameter& weight,
                    bool transposed, const at::Tensor& biases) {
  const auto bias_of = [&](size_t e) { return part(biases, e).unsqueeze(0); };
  if (const auto y = grouped_product({&weight}, x, call.rows, transposed)) {
    if (!biases.defined()) return *y;
    const ActivityTimer timer(Activity::kElementWise);
    visit_experts(call, [&](size_t e) {
      if (call.rows.count(e) > 0) rows_of(*y, call.rows, e).add_(bias_of(e));
    });
    return *y;
  }
  const int64_t width = transposed ? weight.matrix_rows() : weight.matrix_columns();
  const at::Tensor y = at::empty({x.size(0), width}, x.options());
  const ExpertMatrices matrices(weight, x.scalar_type(), call.purpose);
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    const at::Tensor of_expert = rows_of(y, call.rows, e);
    if (biases.defined()) of_expert.copy_(bias_of(e).expand(of_expert.sizes()));
    matrices.multiply_into(of_expert, rows_of(x, call.rows, e), e, transposed,
                           /*beta=*/biases.defined() ? 1 : 0);
  });
  return y;
}

// x W[e] + b[e], for the rows of each expert, and what the branch adds.
at::Tensor project(const FusedCall& call, const at::Tensor& x, const FusedMatrices& m) {
  const at::Tensor y = multiply(call, x, *m.weight, m.rows_are_outputs,
                                m.bias != nullptr ? m.bias->value() : at::Tensor());
  if (m.branch == nullptr) return y;
  m.branch_is_swapped ? add_swapped_branch_(y, x, *m.branch, call.rows)
                      : add_expert_branch_({y}, x, *m.branch, call.rows);
  return y;
}

// Gradients of the branch, where there is one; `dx` may be undefined.
void branch_backward(const FusedCall& call, const FusedMatrices& m, const at::Tensor& dy,
                     const at::Tensor& x, const at::Tensor& dx) {
  if (m.branch == nullptr) return;
  m.branch_is_swapped ? swapped_branch_backward(dy, x, *m.branch, call.rows, dx)
                      : expert_branch_backward({dy}, x, *m.branch, call.rows, dx);
}

// dy W[e]^T.
at::Tensor project_back(const FusedCall& call, const at::Tensor& dy, const FusedMatrices& m) {
  return multiply(call, dy, *m.weight, !m.rows_are_outputs, /*biases=*/{});
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

void write_weight_gradient(const FusedCall& call, const FusedMatrices& m, const at::Tensor& x,
                           const at::Tensor& dy) {
  m.rows_are_outputs ? write_gradient(call, *m.weight, dy, x)
                     : write_gradient(call, *m.weight, x, dy);
}

// What the bias of down gives the gradient of each row's weight, fp32 [S, 1].
at::Tensor products_with_bias(const FusedCall& call, const at::Tensor& dy,
                              const Parameter& biases) {
  const at::Tensor products = at::empty({dy.size(0), 1}, dy.options().dtype(at::kFloat));
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    const at::Tensor bias = part(biases.value(), e).unsqueeze(1);
    ops::matmul_into(rows_of(products, call.rows, e), rows_of(dy, call.rows, e), bias, {},
                     /*beta=*/0);
  });
  return products;
}

// Of down, from dy [T, hidden]: writes its gradients and returns that of its input, of rows whose
// weight is not yet applied. `scaled`: its input times the weights, where that is needed.
at::Tensor backward_down(const FusedCall& call, const at::Tensor& dy_rows, at::Tensor scaled,
                         const at::Tensor& scales) {
  const FusedMatrices& down = call.experts.down;
  write_weight_gradient(call, down, scaled, dy_rows);
  if (down.branch == nullptr) scaled.reset();
  if (down.bias != nullptr) write_gradient(call, *down.bias, scales, dy_rows);
  const at::Tensor dgated = project_back(call, dy_rows, down);
  branch_backward(call, down, dy_rows, scaled, dgated);
  return dgated;
}

// The same of rows without weights after them: nothing is returned.
void backward_unweighted_out(const FusedCall& call, const at::Tensor& dy,
                             const at::Tensor& gate_up) {
  const FusedExperts& experts = call.experts;
  at::Tensor values;
  if (needs_input(experts.down)) values = gated(gate_up, experts.gate);
  const at::Tensor dgated = backward_down(call, spread(dy, call.rows), std::move(values), {});
  gated_backward_(gate_up, dgated, experts.gate);
}

// From dy [T, hidden] back to the gates: writes the gradients of down and its biases, turns
// `gate_up` into its gradient and returns that of the weights, [T, k].
at::Tensor backward_out(const FusedCall& call, const at::Tensor& dy, const at::Tensor& weights,
                        const at::Tensor& gate_up) {
  const FusedExperts& experts = call.experts;
  const at::Tensor dy_rows = spread(dy, call.rows);
  // A router that rounds has rounded them to this type before; others' are rounded as every other
  // factor of a product is.
  const at::Tensor scales = weights_of_rows(weights, call.rows).to(gate_up.scalar_type());
  at::Tensor values = gated(gate_up, experts.gate);
  // With the row's weight at the gated side, the result of down is needed for no gradient.
  at::Tensor scaled = needs_input(experts.down) ? values * scales : at::Tensor();
  const at::Tensor dgated = backward_down(call, dy_rows, std::move(scaled), scales);
  at::Tensor of_bias;
  if (experts.down.bias != nullptr) {
    of_bias = products_with_bias(call, dy_rows, *experts.down.bias);
  }
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor dscales =
      values.mul_(dgated).sum(at::IntArrayRef{1}, /*keepdim=*/true, at::kFloat);
  if (of_bias.defined()) dscales.add_(of_bias);
  dgated.mul_(scales);
  gated_backward_(gate_up, dgated, experts.gate);
  return weights_of_tokens(dscales.squeeze(1), call.rows, weights);
}

// Of gate_up, from the gradient of what it gives: writes its gradients and, where it is wanted,
// returns that of its input, of rows.
at::Tensor backward_gate_up(const FusedCall& call, at::Tensor input, const at::Tensor& dgate_up,
                            bool wants_dx) {
  const FusedMatrices& m = call.experts.gate_up;
  write_weight_gradient(call, m, input, dgate_up);
  if (m.branch == nullptr) input.reset();
  if (m.bias != nullptr) {
    write_gradient(call, *m.bias, at::ones({dgate_up.size(0), 1}, dgate_up.options()), dgate_up);
  }
  at::Tensor dinput;
  if (wants_dx) dinput = project_back(call, dgate_up, m);
  branch_backward(call, m, dgate_up, input, dinput);
  return dinput;
}

// The same, and the gradient of x.
at::Tensor backward_in(const FusedCall& call, const at::Tensor& x, const at::Tensor& dgate_up,
                       int64_t num_tokens, bool wants_dx) {
  const at::Tensor dinput =
      backward_gate_up(call, x.defined() ? spread(x, call.rows) : x, dgate_up, wants_dx);
  if (!wants_dx) return {};
  return ops::row_sums(dinput, call.rows.place, num_tokens, {});
}

// Gradients of inputs that their weights scale.
struct ScaledInputGradients {
  at::Tensor dx, dweights;
};

ScaledInputGradients backward_scaled_in(const FusedCall& call, const at::Tensor& x,
                                        const at::Tensor& weights, const at::Tensor& dgate_up,
                                        bool wants_any) {
  const at::Tensor rows = spread(x, call.rows);
  const at::Tensor scales = weights_of_rows(weights, call.rows).to(rows.scalar_type());
  const at::Tensor dinput = backward_gate_up(call, rows * scales, dgate_up, wants_any);
  if (!wants_any) return {};
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor dscales = (rows * dinput).sum(at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat);
  return {ops::row_sums(dinput.mul_(scales), call.rows.place, x.size(0), {}),
          weights_of_tokens(dscales, call.rows, weights)};
}

struct FusedExpertsFunction : torch::autograd::Function<FusedExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, FusedCall call, const at::Tensor& x,
                            const at::Tensor& weights, const std::optional<at::Tensor>& residual) {
    const FusedExperts& experts = call.experts;
    const bool scales = experts.scales_inputs;
    const at::Tensor input = spread(x, call.rows);
    if (scales) input.mul_(weights_of_rows(weights, call.rows).to(input.scalar_type()));
    const at::Tensor gate_up = project(call, input, experts.gate_up);
    at::Tensor y = at::empty_strided(x.sizes(), {0, 0}, x.options());
    if (call.wants_output) {
      const at::Tensor out = project(call, gated(gate_up, experts.gate), experts.down);
      y = ops::row_sums(out, call.rows.place, x.size(0), scales ? at::Tensor() : weights);
      if (call.has_residual) y.add_(*residual);
    }
    const bool keeps_input = scales || needs_input(experts.gate_up);
    if (!keeps_input) call.remake = nullptr;
    context->save_for_backward({keeps_input && !call.remake ? x : at::Tensor(), gate_up, weights});
    save_state(context, std::move(call));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = take_state<FusedCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = call.remake ? call.remake() : saved[0];
    const at::Tensor dresidual = call.has_residual ? gradients[0] : at::Tensor();
    // Nobody else reads it, and a graph runs backward once: its memory takes the gradient.
    const at::Tensor dgate_up = saved[1].detach();
    if (call.experts.scales_inputs) {
      backward_unweighted_out(call, gradients[0], dgate_up);
      const bool wants_any = context->needs_input_grad(0) || context->needs_input_grad(1);
      const auto [dx, dweights] = backward_scaled_in(call, x, saved[2], dgate_up, wants_any);
      return {at::Tensor(), dx, dweights, dresidual};
    }
    const at::Tensor dweights = backward_out(call, gradients[0], saved[2], dgate_up);
    const bool wants_dx = context->needs_input_grad(0);
    const at::Tensor dx = backward_in(call, x, dgate_up, gradients[0].size(0), wants_dx);
    return {at::Tensor(), dx, dweights, dresidual};
  }
};

}  // namespace

at::Tensor add_fused_experts_last(const FusedExperts& experts, const Remakable& x,
                                  const std::optional<at::Tensor>& residual, const Routing& routing,
                                  const ForwardContext& context) {
  FusedCall call{.experts = experts,
                 .rows = sort_by_expert(routing.experts, experts.num_experts()),
                 .has_residual = residual.has_value(),
                 .wants_output = context.pass.wants_output,
                 .purpose = purpose_of(context)};
  if (context.pass.remakes_inputs) call.remake = x.remake;
  return FusedExpertsFunction::apply(std::move(call), x.value, routing.weights, residual);
}

}  // namespace strata::nn
