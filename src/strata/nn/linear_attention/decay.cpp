#include "strata/nn/linear_attention/decay.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DecayCall {
  Parameter* log_rate;
  Parameter* bias;

  at::Tensor shifted(const at::Tensor& a) const {
    return a.to(at::kFloat) + bias->value().to(at::kFloat);
  }
  at::Tensor rate() const { return log_rate->value().to(at::kFloat).exp().neg(); }
};

struct DecayFunction : torch::autograd::Function<DecayFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const DecayCall& call) {
    context->save_for_backward({a});
    save_state(context, call);
    return call.rate() * at::softplus(call.shifted(a));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<DecayCall>(context);
    const at::Tensor a = context->get_saved_variables()[0];
    const at::Tensor shifted = call.shifted(a), rate = call.rate();
    const at::Tensor da = gradients[0] * rate * at::sigmoid(shifted);
    if (call.log_rate->requires_grad()) {
      call.log_rate->accumulate_grad((gradients[0] * rate * at::softplus(shifted)).sum(0));
    }
    if (call.bias->requires_grad()) call.bias->accumulate_grad(da.sum(0));
    return {da.to(a.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias) {
  return DecayFunction::apply(a, DecayCall{&log_rate, &bias});
}

}  // namespace strata::nn
