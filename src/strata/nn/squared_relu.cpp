#include "strata/nn/squared_relu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor run(const at::Tensor& x) {
  const ActivityTimer timer(Activity::kElementWise);
  return at::relu(x).square_();
}

struct SquaredReluFunction : torch::autograd::Function<SquaredReluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return run(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor x = context->get_saved_variables()[0].detach();
    return {x.relu_().mul_(gradients[0]).mul_(2)};
  }
};

}  // namespace

Remakable squared_relu(const at::Tensor& x) {
  const auto again = [kept = x.detach()] { return run(kept); };
  return {SquaredReluFunction::apply(x), again};
}

}  // namespace strata::nn
