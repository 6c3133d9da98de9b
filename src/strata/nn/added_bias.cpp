#include "strata/nn/added_bias.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BiasFunction : torch::autograd::Function<BiasFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Parameter* bias) {
    const ActivityTimer timer(Activity::kElementWise);
    save_state(context, bias);
    return x + bias->value().to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    Parameter& bias = *load_state<Parameter*>(context);
    // In fp32, as a linear layer's.
    if (bias.requires_grad()) {
      bias.accumulate_grad(gradients[0].sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
    }
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor with_bias(const at::Tensor& x, Parameter& bias) { return BiasFunction::apply(x, &bias); }

}  // namespace strata::nn
