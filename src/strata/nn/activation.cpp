#include "strata/nn/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/base/error.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor run(const at::Tensor& x, Activation activation) {
  const ActivityTimer timer(Activity::kElementWise);
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kSquaredRelu:
      return at::relu(x).square_();
  }
  throw InternalError("activation: found an unknown one; report this as a bug");
}

// relu's slope is in its result, which the product after it keeps anyway.
bool keeps_result(Activation activation) { return activation == Activation::kRelu; }

// Into the memory of x, or of the result that is kept in its place: what reads it after the
// activation has had its backward pass.
void differentiate_(at::Tensor x, const at::Tensor& dy, Activation activation) {
  const ActivityTimer timer(Activity::kElementWise);
  switch (activation) {
    case Activation::kRelu:
      at::threshold_backward_out(x, dy, x, 0);
      return;
    case Activation::kGelu:
      at::gelu_backward_out(x, dy, x);
      return;
    case Activation::kGeluTanh:
      at::gelu_backward_out(x, dy, x, "tanh");
      return;
    case Activation::kSilu:
      at::silu_backward_out(x, dy, x);
      return;
    case Activation::kSquaredRelu:
      x.relu_().mul_(dy).mul_(2);
      return;
  }
}

struct ActivationCall {
  Activation activation;
};

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* context, const ActivationCall& call,
                            const at::Tensor& x) {
    at::Tensor y = run(x, call.activation);
    context->save_for_backward({keeps_result(call.activation) ? y : x});
    save_state(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach();
    differentiate_(x, gradients[0].contiguous(), load_state<ActivationCall>(context).activation);
    return {at::Tensor(), x};
  }
};

}  // namespace

Remakable activate(const at::Tensor& x, Activation activation) {
  if (keeps_result(activation)) {
    return ActivationFunction::apply(ActivationCall{activation}, x);
  }
  const auto again = [kept = x.detach(), activation] { return run(kept, activation); };
  return {ActivationFunction::apply(ActivationCall{activation}, x), again};
}

}  // namespace strata::nn
