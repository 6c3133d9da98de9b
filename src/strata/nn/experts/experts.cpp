#include "strata/nn/experts/experts.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/experts/grouped_product.h"
#include "strata/nn/function_state.h"
#include "strata/nn/weight_product.h"
#include "strata/ops/row_sums.h"
#include "strata/ops/swiglu.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ExpertsCall {
  std::vector<Expert> experts;
  ExpertBranch *in_branch, *down_branch;  // null: there is none
  ExpertRows rows;
  bool has_residual;
  Purpose purpose;
  bool wants_output;
  std::function<at::Tensor()> remake = {};  // of x; empty: x is kept

  bool has_gates() const { return !experts.empty() && experts.front().gate != nullptr; }
};

bool needs_input(const Linear& layer) {
  return layer.weight().requires_grad() || layer.low_rank() != nullptr;
}

bool need_input(const ExpertsCall& call) {
  return call.in_branch != nullptr || std::ranges::any_of(call.experts, [](const Expert& e) {
           return (e.gate != nullptr && needs_input(*e.gate)) || needs_input(*e.up);
         });
}

// Products with codes may decode a whole weight: one at a time.
void visit_experts(const ExpertsCall& call, const std::function<void(size_t)>& visit) {
  const bool has_codes = std::ranges::any_of(call.experts, [](const Expert& e) {
    return (e.gate != nullptr && e.gate->weight().quantization()) ||
           e.up->weight().quantization() || e.down->weight().quantization();
  });
  for_each_expert(call.rows, /*at_once=*/call.rows.token.is_cpu() && !has_codes, visit);
}

// What a layer of every expert makes of its rows.
struct Product {
  at::Tensor rows;
  bool has_base = false;  // the products by the weights are there, of all experts
};

// Whether the layer itself multiplies by whole numbers (forward_product_into()).
bool multiplies_in_int8(const ExpertsCall& call, const Parameter& weight, bool back) {
  const auto& quantization = weight.quantization();
  return !back && call.purpose != Purpose::kTraining && quantization &&
         quantization->format.kind == ops::quant::Kind::kInt8;
}

// By one operation where that can be; else memory for products one by one.
Product start_product(const ExpertsCall& call, Linear* Expert::*layer, const at::Tensor& x,
                      bool back) {
  std::vector<const Parameter*> weights;
  for (const Expert& expert : call.experts) weights.push_back(&(expert.*layer)->weight());
  if (!multiplies_in_int8(call, *weights[0], back)) {
    if (const auto rows = grouped_product(weights, x, call.rows, /*transposed=*/!back)) {
      return {*rows, /*has_base=*/true};
    }
  }
  return {at::empty({x.size(0), weights[0]->shape()[back ? 1 : 0]}, x.options())};
}

// Writes layer(x) for the rows of one expert, or adds its branch where the base is there.
void project(const ExpertsCall& call, size_t e, Linear* Expert::*layer, const at::Tensor& input,
             const Product& product) {
  const Linear& linear = *(call.experts[e].*layer);
  const at::Tensor x = rows_of(input, call.rows, e), y = rows_of(product.rows, call.rows, e);
  if (!product.has_base) {
    forward_product_into(y, x, linear.weight(), /*beta=*/0, call.purpose);
  }
  if (linear.low_rank() != nullptr) low_rank_forward_(y, x, *linear.low_rank(), {});
}

// What is added to a dx, and how.
struct InputPart {
  at::Tensor rows;  // undefined: not wanted
  float beta = 0;
  bool has_base = false;
};

// The gradients of a layer's weight and branch from x and dy; what they add to dx, where it is
// defined, too. Rows of `x` may be scaled against those of the forward pass: the gradients are then
// those of a scaled dy, and dx is that of dy.
void backpropagate(Linear& layer, const at::Tensor& x, const at::Tensor& dy,
                   const InputPart& part) {
  const at::Tensor& dx = part.rows;
  if (layer.weight().requires_grad()) layer.weight().accumulate_grad_product(dy, x);
  if (dx.defined() && !part.has_base) {
    multiply_by_weight_back_into(dx, dy, layer.weight(), part.beta);
  }
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

// What silu(gate) * up, or the square of relu(up), is made of for all rows.
struct Projected {
  at::Tensor gate, up;  // [S, intermediate]; no gate: undefined
};

at::Tensor activated(const Projected& p) {
  if (p.gate.defined()) return ops::swiglu(p.gate, p.up);
  const ActivityTimer timer(Activity::kElementWise);
  return at::relu(p.up).square_();
}

// From the gradient of what is activated, of rows whose weight is not yet applied: turns
// `projected` into the gradients of its tensors and returns that of the weights, fp32 [S].
at::Tensor activated_backward_(const at::Tensor& dy, const at::Tensor& scales, Projected& p) {
  if (p.gate.defined()) {
    return ops::weighted_swiglu_backward(dy, scales.view({-1}), p.gate, p.up, p.gate, p.up);
  }
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor relu = p.up.relu_();
  const at::Tensor dscales = (relu.square() * dy).sum(at::IntArrayRef{1}, false, at::kFloat);
  relu.mul_(dy).mul_(2 * scales.to(dy.scalar_type()));
  return dscales;
}

// Where a branch of gate and up as one matrix gives its results, or has their gradients.
OutputParts parts_of(const Projected& p) {
  return p.gate.defined() ? OutputParts{p.gate, p.up} : OutputParts{p.up};
}

Projected project_in(const ExpertsCall& call, const at::Tensor& x) {
  const at::Tensor input = spread(x, call.rows);
  Product gate;
  if (call.has_gates()) gate = start_product(call, &Expert::gate, input, /*back=*/false);
  const Product up = start_product(call, &Expert::up, input, /*back=*/false);
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) == 0) return;
    if (call.has_gates()) project(call, e, &Expert::gate, input, gate);
    project(call, e, &Expert::up, input, up);
  });
  const Projected projected{gate.rows, up.rows};
  if (call.in_branch != nullptr) {
    add_expert_branch_(parts_of(projected), input, *call.in_branch, call.rows);
  }
  return projected;
}

at::Tensor project_out(const ExpertsCall& call, const at::Tensor& gated) {
  const Product y = start_product(call, &Expert::down, gated, /*back=*/false);
  visit_experts(call, [&](size_t e) {
    if (call.rows.count(e) > 0) project(call, e, &Expert::down, gated, y);
  });
  if (call.down_branch != nullptr) {
    add_expert_branch_({y.rows}, gated, *call.down_branch, call.rows);
  }
  return y.rows;
}

// From dy [T, hidden] back to the gates: writes the gradients of all down projections, turns
// `projected` into the gradients of its tensors and returns that of the weights, [T, k].
at::Tensor backward_out(const ExpertsCall& call, const at::Tensor& dy, const at::Tensor& weights,
                        Projected& projected) {
  const at::Tensor dy_rows = spread(dy, call.rows);
  const at::Tensor scales = weights_of_rows(weights, call.rows);
  // With the row's weight at the gated side, the result of down is needed for no gradient.
  at::Tensor scaled;
  if (call.down_branch != nullptr ||
      std::ranges::any_of(call.experts, [](const Expert& e) { return needs_input(*e.down); })) {
    scaled = activated(projected);
    const ActivityTimer timer(Activity::kElementWise);
    scaled.mul_(scales.to(scaled.scalar_type()));
  }
  const Product product = start_product(call, &Expert::down, dy_rows, /*back=*/true);
  const at::Tensor& dgated = product.rows;
  visit_experts(call, [&](size_t e) {
    Linear& down = *call.experts[e].down;
    if (call.rows.count(e) == 0) {
      write_zero_gradients(down);
    } else {
      backpropagate(down, scaled.defined() ? rows_of(scaled, call.rows, e) : scaled,
                    rows_of(dy_rows, call.rows, e),
                    {rows_of(dgated, call.rows, e), /*beta=*/0, product.has_base});
    }
  });
  if (call.down_branch != nullptr) {
    expert_branch_backward({dy_rows}, scaled, *call.down_branch, call.rows, dgated);
  }
  scaled.reset();
  return weights_of_tokens(activated_backward_(dgated, scales, projected), call.rows, weights);
}

// Writes the gradients of all gate and up projections and, where it is wanted, returns that of x.
at::Tensor backward_in(const ExpertsCall& call, const at::Tensor& x, const Projected& gradients,
                       int64_t num_tokens, bool wants_dx) {
  const at::Tensor input = x.defined() ? spread(x, call.rows) : at::Tensor();
  const bool has_gates = call.has_gates();
  Product dinput;
  if (wants_dx && !has_gates) {
    dinput = start_product(call, &Expert::up, gradients.up, /*back=*/true);
  } else if (wants_dx) {
    dinput = start_product(call, &Expert::gate, gradients.gate, /*back=*/true);
    if (dinput.has_base) {
      const Product of_up = start_product(call, &Expert::up, gradients.up, /*back=*/true);
      dinput.has_base = of_up.has_base;  // refused the second time: all once more, one by one
      if (of_up.has_base) dinput.rows.add_(of_up.rows);
    }
  }
  const auto part = [&](const at::Tensor& rows, size_t e) {
    return rows.defined() ? rows_of(rows, call.rows, e) : rows;
  };
  visit_experts(call, [&](size_t e) {
    const Expert& expert = call.experts[e];
    if (call.rows.count(e) == 0) {
      if (has_gates) write_zero_gradients(*expert.gate);
      write_zero_gradients(*expert.up);
      return;
    }
    const at::Tensor x_rows = part(input, e), dx_rows = part(dinput.rows, e);
    if (has_gates) {
      backpropagate(*expert.gate, x_rows, part(gradients.gate, e),
                    {dx_rows, /*beta=*/0, dinput.has_base});
    }
    backpropagate(*expert.up, x_rows, part(gradients.up, e),
                  {dx_rows, /*beta=*/has_gates ? 1.0F : 0.0F, dinput.has_base});
  });
  if (call.in_branch != nullptr) {
    expert_branch_backward(parts_of(gradients), input, *call.in_branch, call.rows, dinput.rows);
  }
  if (!wants_dx) return {};
  return ops::row_sums(dinput.rows, call.rows.place, num_tokens, {});
}

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, ExpertsCall call, const at::Tensor& x,
                            const at::Tensor& weights, const std::optional<at::Tensor>& residual) {
    const Projected projected = project_in(call, x);
    at::Tensor y = at::empty_strided(x.sizes(), {0, 0}, x.options());
    if (call.wants_output) {
      const at::Tensor out = project_out(call, activated(projected));
      y = ops::row_sums(out, call.rows.place, x.size(0), weights);
      if (call.has_residual) y.add_(*residual);
    }
    const bool keeps_input = need_input(call);
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
    Projected projected{saved[1].defined() ? saved[1].detach() : saved[1], saved[2].detach()};
    const at::Tensor dweights = backward_out(call, gradients[0], saved[3], projected);
    const at::Tensor dx = backward_in(call, x, projected, gradients[0].size(0),
                                      /*wants_dx=*/context->needs_input_grad(0));
    return {at::Tensor(), dx, dweights, call.has_residual ? gradients[0] : at::Tensor()};
  }
};

}  // namespace

at::Tensor add_experts_last(const Experts& experts, const Remakable& x,
                            const std::optional<at::Tensor>& residual, const Routing& routing,
                            const ForwardContext& context) {
  ExpertsCall call{.experts = experts.each,
                   .in_branch = experts.in_branch,
                   .down_branch = experts.down_branch,
                   .rows = sort_by_expert(routing.experts, std::ssize(experts.each)),
                   .has_residual = residual.has_value(),
                   .purpose = purpose_of(context),
                   .wants_output = context.pass.wants_output};
  if (context.pass.remakes_inputs) call.remake = x.remake;
  return ExpertsFunction::apply(std::move(call), x.value, routing.weights, residual);
}

}  // namespace strata::nn
