#include "strata/nn/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/expert_balance.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouteCall {
  RouterOptions options;
  ExpertBalance* balance;  // null: none
  bool adds;               // to it
};

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* context, const RouteCall& call,
                               const at::Tensor& logits) {
    const ActivityTimer timer(Activity::kElementWise);
    const RouterOptions& options = call.options;
    const at::Tensor probabilities = at::softmax(logits.to(at::kFloat), /*dim=*/1);
    auto [weights, experts] = at::topk(probabilities, options.experts_per_token, /*dim=*/1);
    if (call.adds) call.balance->add(probabilities, experts);
    if (options.normalizes) weights.div_(weights.sum(/*dim=*/1, /*keepdim=*/true));
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
    const at::Tensor chosen = probabilities.gather(1, experts);
    at::Tensor dchosen = gradients[0];
    const auto& call = load_state<RouteCall>(context);
    if (call.options.normalizes) {
      const at::Tensor sum = chosen.sum(/*dim=*/1, /*keepdim=*/true);
      const at::Tensor mean = (dchosen * chosen).sum(/*dim=*/1, /*keepdim=*/true) / sum;
      dchosen = (dchosen - mean) / sum;
    }
    // Of softmax: p (dp - sum of p dp), where dp is zero but for the chosen, unless all are
    // balanced.
    const at::Tensor terms = dchosen * chosen;
    at::Tensor dlogits = at::zeros_like(probabilities).scatter_(1, experts, terms);
    const bool is_balanced = call.balance != nullptr && call.balance->has_gradient();
    if (is_balanced) dlogits.addcmul_(probabilities, call.balance->gradient());
    const at::Tensor sums = (is_balanced ? dlogits : terms).sum(/*dim=*/1, /*keepdim=*/true);
    dlogits.addcmul_(probabilities, sums, /*value=*/-1);
    return {at::Tensor(), dlogits.to(context->saved_data["type"].toScalarType())};
  }
};

}  // namespace

Routing route(const at::Tensor& logits, const RouterOptions& options,
              const ForwardContext& context) {
  const RouteCall call{.options = options,
                       .balance = context.balance,
                       .adds = context.balance != nullptr && context.wants_output};
  const variable_list outputs = RouteFunction::apply(call, logits);
  return {outputs[0], outputs[1]};
}

}  // namespace strata::nn
