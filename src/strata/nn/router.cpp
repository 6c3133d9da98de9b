#include "strata/nn/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* context, const RouterOptions& options,
                               const at::Tensor& logits) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor probabilities = at::softmax(logits.to(at::kFloat), /*dim=*/1);
    auto [weights, experts] = at::topk(probabilities, options.experts_per_token, /*dim=*/1);
    if (options.normalizes) weights.div_(weights.sum(/*dim=*/1, /*keepdim=*/true));
    if (options.rounds) weights = weights.to(logits.scalar_type()).to(at::kFloat);
    context->save_for_backward({probabilities, experts});
    context->saved_data["type"] = logits.scalar_type();
    context->mark_non_differentiable({experts});
    save_state(context, options);
    return {weights, experts};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &probabilities = saved[0], &experts = saved[1];
    const at::Tensor chosen = probabilities.gather(1, experts);
    at::Tensor dchosen = gradients[0];
    if (load_state<RouterOptions>(context).normalizes) {
      const at::Tensor sum = chosen.sum(/*dim=*/1, /*keepdim=*/true);
      const at::Tensor mean = (dchosen * chosen).sum(/*dim=*/1, /*keepdim=*/true) / sum;
      dchosen = (dchosen - mean) / sum;
    }
    // Of softmax: p (dp - sum of p dp), where dp is zero but for the chosen.
    const at::Tensor terms = dchosen * chosen;
    at::Tensor dlogits = at::zeros_like(probabilities).scatter_(1, experts, terms);
    dlogits.addcmul_(probabilities, terms.sum(/*dim=*/1, /*keepdim=*/true), /*value=*/-1);
    return {at::Tensor(), dlogits.to(context->saved_data["type"].toScalarType())};
  }
};

}  // namespace

Routing route(const at::Tensor& logits, const RouterOptions& options) {
  const variable_list outputs = RouteFunction::apply(options, logits);
  return {outputs[0], outputs[1]};
}

}  // namespace strata::nn
