#include "strata/nn/scaled_add.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AddScaledFunction : torch::autograd::Function<AddScaledFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& residual,
                            const at::Tensor& x, double scale, bool wants_output) {
    context->saved_data["scale"] = scale;
    if (!wants_output) return at::empty_strided(x.sizes(), {0, 0}, x.options());
    return at::add(residual, x, scale);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const double scale = context->saved_data["scale"].toDouble();
    return {gradients[0], gradients[0] * scale, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor add_scaled(const at::Tensor& residual, const at::Tensor& x, double scale,
                      bool wants_output) {
  return AddScaledFunction::apply(residual, x, scale, wants_output);
}

}  // namespace strata::nn
