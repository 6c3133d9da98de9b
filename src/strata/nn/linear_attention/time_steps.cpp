#include "strata/nn/linear_attention/time_steps.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct StepCall {
  Parameter* bias;
  StepLimits limits;

  at::Tensor shifted(const at::Tensor& x) const {
    return x.to(at::kFloat) + bias->value().to(at::kFloat);
  }
};

struct StepFunction : torch::autograd::Function<StepFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const StepCall& call) {
    context->save_for_backward({x});
    save_state(context, call);
    return at::softplus(call.shifted(x)).clamp_(call.limits.least, call.limits.most);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<StepCall>(context);
    const at::Tensor x = context->get_saved_variables()[0], shifted = call.shifted(x);
    const at::Tensor steps = at::softplus(shifted);
    const at::Tensor is_inside =
        steps.ge(call.limits.least).bitwise_and_(steps.le(call.limits.most));
    const at::Tensor dx = gradients[0] * at::sigmoid(shifted) * is_inside;
    if (call.bias->requires_grad()) call.bias->accumulate_grad(dx.sum(0));
    return {dx.to(x.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor time_steps(const at::Tensor& x, Parameter& bias, const StepLimits& limits) {
  return StepFunction::apply(x, StepCall{&bias, limits});
}

}  // namespace strata::nn
