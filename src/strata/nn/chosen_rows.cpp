#include "strata/nn/chosen_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ChosenRows : torch::autograd::Function<ChosenRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& rows) {
    context->save_for_backward({rows});
    context->saved_data["sizes"] = x.sizes().vec();
    return x.index_select(0, rows);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor& dy = gradients[0];
    at::Tensor dx = at::zeros(context->saved_data["sizes"].toIntVector(), dy.options());
    dx.index_add_(0, context->get_saved_variables()[0], dy);
    return {dx, at::Tensor()};
  }
};

}  // namespace

at::Tensor chosen_rows(const at::Tensor& x, const at::Tensor& rows) {
  return ChosenRows::apply(x, rows);
}

}  // namespace strata::nn
