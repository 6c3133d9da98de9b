#include "strata/nn/linear_attention/silu_gate.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluGateFunction : torch::autograd::Function<SiluGateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& z) {
    const ActivityTimer timer(Activity::kElementWise);
    context->save_for_backward({y, z});
    return at::silu(z.to(at::kFloat)).mul_(y).to(y.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], z = saved[1].to(at::kFloat);
    const at::Tensor dout = gradients[0].to(at::kFloat);
    return {(dout * at::silu(z)).to(y.scalar_type()),
            at::silu_backward(dout * y, z).to(saved[1].scalar_type())};
  }
};

}  // namespace

at::Tensor silu_gate(const at::Tensor& y, const at::Tensor& z) {
  return SiluGateFunction::apply(y, z);
}

}  // namespace strata::nn
