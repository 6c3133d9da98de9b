#include "strata/nn/experts/corrected_router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CorrectedCall {
  CorrectedRouterOptions options;
  at::Tensor correction;
  at::ScalarType type;
};

struct CorrectedFunction : torch::autograd::Function<CorrectedFunction> {
  static variable_list forward(AutogradContext* context, CorrectedCall call,
                               const at::Tensor& logits) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor probabilities = at::softmax(logits, /*dim=*/1);
    const at::Tensor experts = std::get<1>(
        at::topk(probabilities + call.correction, call.options.experts_per_token, /*dim=*/1));
    const at::Tensor weights = probabilities.gather(1, experts);
    weights.div_(weights.sum(/*dim=*/1, /*keepdim=*/true).clamp_min_(call.options.least_sum));
    const at::Tensor rounded = weights.to(call.type).to(at::kFloat);
    context->save_for_backward({probabilities, experts});
    context->mark_non_differentiable({experts});
    save_state(context, std::move(call));
    return {rounded, experts};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &probabilities = saved[0], &experts = saved[1];
    const double least = load_state<CorrectedCall>(context).options.least_sum;
    const at::Tensor chosen = probabilities.gather(1, experts);
    const at::Tensor sums = chosen.sum(/*dim=*/1, /*keepdim=*/true);
    // A sum below the least is no divisor, and has no gradient then.
    const at::Tensor divisors = sums.clamp_min(least);
    const at::Tensor mean = (gradients[0] * chosen)
                                .sum(/*dim=*/1, /*keepdim=*/true)
                                .div_(divisors)
                                .masked_fill_(sums < least, 0.0);
    const at::Tensor terms = (gradients[0] - mean).div_(divisors).mul_(chosen);
    const at::Tensor dlogits = at::zeros_like(probabilities).scatter_(1, experts, terms);
    dlogits.addcmul_(probabilities, terms.sum(/*dim=*/1, /*keepdim=*/true), /*value=*/-1);
    return {at::Tensor(), dlogits};
  }
};

}  // namespace

Routing route_by_corrected_softmax(const at::Tensor& logits, const at::Tensor& correction,
                                   const CorrectedRouterOptions& options, at::ScalarType type) {
  const variable_list outputs = CorrectedFunction::apply(
      CorrectedCall{.options = options, .correction = correction.view({-1}), .type = type}, logits);
  return {outputs[0], outputs[1]};
}

}  // namespace strata::nn
