#include "strata/nn/experts/sigmoid_router.h"

#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SigmoidCall {
  SigmoidRouterOptions options;
  at::Tensor correction;
  int64_t num_experts = 0;
  at::ScalarType type = at::kFloat;  // of the logits
};

// Experts of groups that are not chosen come last. `scores` [T, experts] are changed.
void put_other_groups_last(const at::Tensor& scores, const ExpertGroups& groups) {
  const at::Tensor grouped = by_group(scores, groups);
  const at::Tensor sums = std::get<0>(at::topk(grouped, 2, /*dim=*/2)).sum(/*dim=*/2);
  grouped.masked_fill_(left_out(sums, groups), -std::numeric_limits<double>::infinity());
}

at::Tensor choose(const at::Tensor& scores, const SigmoidCall& call) {
  const at::Tensor corrected =
      call.correction.defined() ? scores + call.correction : scores.clone();
  if (call.options.groups.count > 1) put_other_groups_last(corrected, call.options.groups);
  return std::get<1>(at::topk(corrected, call.options.experts_per_token, /*dim=*/1));
}

at::Tensor sums_of(const at::Tensor& chosen, const SigmoidCall& call) {
  return chosen.sum(/*dim=*/1, /*keepdim=*/true).add_(call.options.least_sum);
}

struct SigmoidFunction : torch::autograd::Function<SigmoidFunction> {
  static variable_list forward(AutogradContext* context, SigmoidCall call,
                               const at::Tensor& logits) {
    const ActivityTimer timer(Activity::kElementWise);
    call.num_experts = logits.size(1);
    call.type = logits.scalar_type();
    const at::Tensor scores = at::sigmoid(logits);
    const at::Tensor experts = choose(call.options.chooses_by_logits ? logits : scores, call);
    const at::Tensor chosen = scores.gather(1, experts);
    const at::Tensor shares = call.options.normalizes ? chosen / sums_of(chosen, call) : chosen;
    context->save_for_backward({chosen, experts});
    context->mark_non_differentiable({experts});
    const double scale = call.options.scale;
    save_state(context, std::move(call));
    return {(shares * scale).to(at::kFloat), experts};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor chosen = saved[0].to(at::kFloat), &experts = saved[1];
    const auto& call = load_state<SigmoidCall>(context);
    at::Tensor dchosen = gradients[0] * call.options.scale;
    if (call.options.normalizes) {
      const at::Tensor sums = sums_of(chosen, call);
      const at::Tensor mean = (dchosen * chosen).sum(/*dim=*/1, /*keepdim=*/true).div_(sums);
      dchosen.sub_(mean).div_(sums);
    }
    dchosen.mul_(chosen).mul_(1 - chosen);  // sigmoid' = s (1 - s)
    const at::Tensor dlogits = at::zeros({chosen.size(0), call.num_experts}, chosen.options())
                                   .scatter_(1, experts, dchosen);
    return {at::Tensor(), dlogits.to(call.type)};
  }
};

}  // namespace

Routing route_by_sigmoid(const at::Tensor& logits, const at::Tensor& correction,
                         const SigmoidRouterOptions& options) {
  const variable_list outputs =
      SigmoidFunction::apply(SigmoidCall{.options = options, .correction = correction}, logits);
  return {outputs[0], outputs[1]};
}

}  // namespace strata::nn
