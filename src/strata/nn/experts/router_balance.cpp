#include "strata/nn/experts/router_balance.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BalanceFunction : torch::autograd::Function<BalanceFunction> {
  static at::Tensor forward(AutogradContext* context, const RouterBalance& call,
                            const at::Tensor& logits, int64_t experts_per_token) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor probabilities = at::softmax(logits.to(at::kFloat), /*dim=*/1);
    call.add(probabilities, std::get<1>(at::topk(probabilities, experts_per_token, /*dim=*/1)));
    context->save_for_backward({probabilities});
    save_state(context, call);
    return logits.view(logits.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<RouterBalance>(context);
    if (!call.has_gradient()) return {at::Tensor(), gradients[0], at::Tensor()};
    const at::Tensor probabilities = context->get_saved_variables()[0];
    const at::Tensor terms = at::zeros_like(probabilities);
    call.add_gradient_(terms, probabilities);
    const at::Tensor sums = terms.sum(/*dim=*/1, /*keepdim=*/true);
    terms.addcmul_(probabilities, sums, /*value=*/-1);
    return {at::Tensor(), gradients[0] + terms.to(gradients[0].scalar_type()), at::Tensor()};
  }
};

}  // namespace

RouterBalance RouterBalance::of(const ForwardContext& context, int64_t num_rows) {
  const Batch* batch = context.batch;
  return {.balance = context.balance,
          .adds = context.balance != nullptr && context.pass.wants_output,
          .num_padding = batch != nullptr ? batch->num_padding : 0,
          .num_tokens = batch != nullptr ? batch->of_documents().num_real_tokens() : num_rows};
}

at::Tensor RouterBalance::real(const at::Tensor& rows) const {
  return rows.narrow(0, 0, rows.size(0) - num_padding);
}

void RouterBalance::add(const at::Tensor& probabilities, const at::Tensor& experts) const {
  if (adds) balance->add(real(probabilities), real(experts), num_tokens);
}

bool RouterBalance::has_gradient() const { return balance != nullptr && balance->has_gradient(); }

void RouterBalance::add_gradient_(const at::Tensor& terms, const at::Tensor& probabilities) const {
  real(terms).addcmul_(real(probabilities), balance->gradient());
}

at::Tensor balanced(const at::Tensor& logits, int64_t experts_per_token,
                    const ForwardContext& context) {
  if (context.balance == nullptr) return logits;
  return BalanceFunction::apply(RouterBalance::of(context, logits.size(0)), logits,
                                experts_per_token);
}

}  // namespace strata::nn
