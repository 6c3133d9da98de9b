#include "strata/nn/experts/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/experts/router_balance.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouteCall {
  RouterOptions options;
  RouterBalance balance;
};

// The probabilities where a token may have the expert, else 0.
at::Tensor allowed(const at::Tensor& probabilities, const ExpertGroups& groups) {
  if (groups.count == 1) return probabilities;
  const at::Tensor grouped = by_group(probabilities, groups);
  return grouped.masked_fill(left_out(grouped.amax(/*dim=*/2), groups), 0.0)
      .view(probabilities.sizes());
}

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* context, const RouteCall& call,
                               const at::Tensor& logits) {
    const ActivityTimer timer(Activity::kElementWise);
    const RouterOptions& options = call.options;
    const at::Tensor probabilities = at::softmax(logits.to(at::kFloat), /*dim=*/1);
    auto [weights, experts] =
        at::topk(allowed(probabilities, options.groups), options.experts_per_token, /*dim=*/1);
    call.balance.add(probabilities, experts);
    if (options.normalizes) weights.div_(weights.sum(/*dim=*/1, /*keepdim=*/true));
    if (options.scale != 1.0) weights.mul_(options.scale);
    if (options.rounds) weights = weights.to(logits.scalar_type()).to(at::kFloat);
    context->save_for_backward({probabilities, experts});
    context->saved_data["type"] = logits.scalar_type();
    context->mark_non_differentiable({experts});
    save_state(context, call);
    return {weights, experts};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &probabilities = saved[0], &experts = saved[1];
    const auto& call = load_state<RouteCall>(context);
    // Of another group where all probabilities of its own are zero.
    const at::Tensor chosen = allowed(probabilities, call.options.groups).gather(1, experts);
    // Of softmax: p (dp - sum of p dp), where dp is zero except for the chosen, unless all are
    // balanced. Normalised weights are a softmax of the chosen alone, so that one expert's has no
    // gradient at all.
    const double scale = call.options.scale;
    const at::Tensor dweights = scale == 1.0 ? gradients[0] : gradients[0] * scale;
    at::Tensor terms = dweights * chosen;
    if (call.options.normalizes) {
      const at::Tensor weights = chosen / chosen.sum(/*dim=*/1, /*keepdim=*/true);
      const at::Tensor mean = (dweights * weights).sum(/*dim=*/1, /*keepdim=*/true);
      terms = weights * (dweights - mean);
    }
    at::Tensor dlogits = at::zeros_like(probabilities).scatter_(1, experts, terms);
    const bool is_balanced = call.balance.has_gradient();
    if (is_balanced) call.balance.add_gradient_(dlogits, probabilities);
    const at::Tensor sums = (is_balanced ? dlogits : terms).sum(/*dim=*/1, /*keepdim=*/true);
    dlogits.addcmul_(probabilities, sums, /*value=*/-1);
    return {at::Tensor(), dlogits.to(context->saved_data["type"].toScalarType())};
  }
};

struct ScaleFunction : torch::autograd::Function<ScaleFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weights,
                            const at::Tensor& experts, Parameter* scales) {
    const ActivityTimer timer(Activity::kElementWise);
    context->save_for_backward({weights, experts});
    save_state(context, scales);
    return weights * of_experts(*scales, experts);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    Parameter& scales = *load_state<Parameter*>(context);
    if (scales.requires_grad()) {
      // A token has an expert once: nothing is added where another thread may add.
      const at::Tensor by_expert =
          at::zeros({saved[1].size(0), scales.numel()}, gradients[0].options());
      by_expert.scatter_(1, saved[1], gradients[0] * saved[0]);
      scales.accumulate_grad(by_expert.sum(/*dim=*/0));
    }
    return {gradients[0] * of_experts(scales, saved[1]), at::Tensor(), at::Tensor()};
  }

  static at::Tensor of_experts(const Parameter& scales, const at::Tensor& experts) {
    return scales.value().to(at::kFloat).index_select(0, experts.flatten()).view(experts.sizes());
  }
};

}  // namespace

Routing scaled_by_expert(const Routing& routing, Parameter& scales) {
  return {ScaleFunction::apply(routing.weights, routing.experts, &scales), routing.experts};
}

Routing route(const at::Tensor& logits, const RouterOptions& options,
              const ForwardContext& context) {
  const RouteCall call{.options = options, .balance = RouterBalance::of(context, logits.size(0))};
  const variable_list outputs = RouteFunction::apply(call, logits);
  return {outputs[0], outputs[1]};
}

}  // namespace strata::nn
