#include "strata/nn/limited.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LimitedFunction : torch::autograd::Function<LimitedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double limit) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor y = x.clamp(-limit, limit);
    context->save_for_backward({x.eq(y)});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    return {gradients[0] * context->get_saved_variables()[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor limited(const at::Tensor& x, double limit) { return LimitedFunction::apply(x, limit); }

}  // namespace strata::nn
