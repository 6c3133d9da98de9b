#include "strata/nn/experts.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"
#include "strata/nn/weight_product.h"
#include "strata/ops/swiglu.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ExpertsCall {
  std::vector<Expert> experts;
  ExpertRows rows;
  bool training;
  bool wants_output;
  std::function<at::Tensor()> remake = {};  // of x; empty: x is kept
};

bool needs_input(const Linear& layer) {
  return layer.weight().requires_grad() || layer.low_rank() != nullptr;
}

bool need_input(const std::vector<Expert>& experts) {
  return std::ranges::any_of(
      experts, [](const Expert& e) { return needs_input(*e.gate) || needs_input(*e.up); });
}

// Products with codes may decode a whole weight: one at a time.
void visit_experts(const ExpertsCall& call, const std::function<void(size_t)>& visit) {
  const bool has_codes = std::ranges::any_of(call.experts, [](const Expert& e) {
    return e.gate->weight().quantization() || e.up->weight().quantization() ||
           e.down->weight().quantization();
  });
  for_each_expert(call.rows, /*at_once=*/call.rows.token.is_cpu() && !has_codes, visit);
}

int64_t width_of(const ExpertsCall& call) { return call.experts[0].gate->out_features(); }

// y = layer(x), for the rows of one expert.
void project(const Linear& layer, const at::Tensor& x, const at::Tensor& y, bool training) {
  forward_product_into(y, x, layer.weight(), /*beta=*/0, training);
  if (layer.low_rank() != nullptr) low_rank_forward_(y, x, *layer.low_rank(), {});
}

// The gradients of a layer's weight and branch from x and dy; what they add to dx, where it is
// defined, too. Rows of `x` may be scaled against those of the forward pass: the gradients are then
// those of a scaled dy, and dx is that of dy.
void backpropagate(Linear& layer, const at::Tensor& x, const at::Tensor& dy, const at::Tensor& dx,
                   float beta) {
  if (layer.weight().requires_grad()) layer.weight().accumulate_grad_product(dy, x);
  if (dx.defined()) multiply_by_weight_back_into(dx, dy, layer.weight(), beta);
  if (LowRankBranch* branch = layer.low_rank(); branch != nullptr) {
    low_rank_backward(dy, {x, low_rank_hidden(x, {branch}, {})}, *branch, {}, dx);
  }
}

void write_zero_gradients(Linear& layer) {
  std::vector<Parameter*> parameters;
  layer.append_parameters(parameters);
  for (Parameter* parameter : parameters) {
    if (!parameter->requires_grad()) continue;
    const GradTarget target = parameter->grad();
    if (target.beta == 0) target.tensor.zero_();
  }
}

// silu(gate) * up for all rows.
struct Projected {
  at::Tensor gate, up;  // [S, intermediate]
};

Projected project_in(const ExpertsCall& call, const at::Tensor& x) {
  const at::Tensor input = spread(x, call.rows);
  Projected y;
  for (at::Tensor* out : {&y.gate, &y.up}) {
    *out = at::empty({input.size(0), width_of(call)}, input.options());
  }
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    const at::Tensor of_expert = rows_of(input, call.rows, e);
    const Expert& expert = call.experts[e];
    project(*expert.gate, of_expert, rows_of(y.gate, call.rows, e), call.training);
    project(*expert.up, of_expert, rows_of(y.up, call.rows, e), call.training);
  });
  return y;
}

at::Tensor project_out(const ExpertsCall& call, const at::Tensor& gated, int64_t hidden) {
  const at::Tensor y = at::empty({gated.size(0), hidden}, gated.options());
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    project(*call.experts[e].down, rows_of(gated, call.rows, e), rows_of(y, call.rows, e),
            call.training);
  });
  return y;
}

// From dy [T, hidden] back to the gates: writes the gradients of all down projections, turns
// `projected` into the gradients of its tensors and returns that of the weights, [T, k].
at::Tensor backward_out(const ExpertsCall& call, const at::Tensor& dy, const at::Tensor& weights,
                        Projected& projected) {
  const at::Tensor dy_rows = spread(dy, call.rows);
  const at::Tensor scales = weights_of_rows(weights, call.rows);
  at::Tensor gated = ops::swiglu(projected.gate, projected.up);
  // With the row's weight at the gated side, the result of down is needed for no gradient.
  const at::Tensor scaled = gated * scales.to(gated.scalar_type());
  at::Tensor dgated = at::empty_like(gated);
  visit_experts(call, [&](size_t e) {
    Linear& down = *call.experts[e].down;
    if (call.rows.count(e) == 0) {
      write_zero_gradients(down);
    } else {
      backpropagate(down, rows_of(scaled, call.rows, e), rows_of(dy_rows, call.rows, e),
                    rows_of(dgated, call.rows, e), /*beta=*/0);
    }
  });
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor dscales =
      gated.mul_(dgated).sum(at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat);
  dgated.mul_(scales);
  ops::swiglu_backward(dgated, projected.gate, projected.up, projected.gate, projected.up);
  return weights_of_tokens(dscales, call.rows, weights);
}

// Writes the gradients of all gate and up projections and, where it is wanted, returns that of x.
at::Tensor backward_in(const ExpertsCall& call, const at::Tensor& x, const Projected& gradients,
                       int64_t num_tokens, bool wants_dx) {
  const at::Tensor input = x.defined() ? spread(x, call.rows) : at::Tensor();
  const int64_t hidden = call.experts[0].gate->in_features();
  const at::Tensor dinput =
      wants_dx ? at::empty({gradients.gate.size(0), hidden}, gradients.gate.options())
               : at::Tensor();
  const auto part = [&](const at::Tensor& rows, size_t e) {
    return rows.defined() ? rows_of(rows, call.rows, e) : rows;
  };
  visit_experts(call, [&](size_t e) {
    const Expert& expert = call.experts[e];
    if (call.rows.count(e) == 0) {
      write_zero_gradients(*expert.gate);
      write_zero_gradients(*expert.up);
      return;
    }
    const at::Tensor x_rows = part(input, e), dx_rows = part(dinput, e);
    backpropagate(*expert.gate, x_rows, part(gradients.gate, e), dx_rows, /*beta=*/0);
    backpropagate(*expert.up, x_rows, part(gradients.up, e), dx_rows, /*beta=*/1);
  });
  if (!wants_dx) return {};
  return gather_sums(dinput, call.rows, num_tokens, {}).to(dinput.scalar_type());
}

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, ExpertsCall call, const at::Tensor& x,
                            const at::Tensor& weights, const at::Tensor& residual) {
    const Projected projected = project_in(call, x);
    at::Tensor y = at::empty_strided(residual.sizes(), {0, 0}, residual.options());
    if (call.wants_output) {
      const at::Tensor out =
          project_out(call, ops::swiglu(projected.gate, projected.up), x.size(1));
      y = gather_sums(out, call.rows, x.size(0), weights).to(residual.scalar_type());
      y.add_(residual);
    }
    const bool keeps_input = need_input(call.experts);
    if (!keeps_input) call.remake = nullptr;
    context->save_for_backward(
        {keeps_input && !call.remake ? x : at::Tensor(), projected.gate, projected.up, weights});
    save_state(context, std::move(call));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = take_state<ExpertsCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = call.remake ? call.remake() : saved[0];
    // Nobody else reads these, and a graph runs backward once: their memory takes the gradients.
    Projected projected{saved[1].detach(), saved[2].detach()};
    const at::Tensor dweights = backward_out(call, gradients[0], saved[3], projected);
    const at::Tensor dx = backward_in(call, x, projected, gradients[0].size(0),
                                      /*wants_dx=*/context->needs_input_grad(0));
    return {at::Tensor(), dx, dweights, gradients[0]};
  }
};

}  // namespace

at::Tensor add_experts_last(const std::vector<Expert>& experts, const Remakable& x,
                            const at::Tensor& residual, const Routing& routing,
                            const ForwardContext& context) {
  ExpertsCall call{.experts = experts,
                   .rows = sort_by_expert(routing.experts, std::ssize(experts)),
                   .training = context.training,
                   .wants_output = context.wants_output};
  if (context.remakes_inputs) call.remake = x.remake;
  return ExpertsFunction::apply(std::move(call), x.value, routing.weights, residual);
}

}  // namespace strata::nn
