#include "strata/nn/unit_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/ops/rms_norm.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor ones_for(const at::Tensor& x) { return at::ones({x.size(1)}, x.options()); }

ops::RmsNormResult run(const at::Tensor& x, double eps) {
  return ops::rms_norm(x, ones_for(x), eps, ops::RmsNormKind::kOlmo);
}

struct UnitNormFunction : torch::autograd::Function<UnitNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double eps) {
    ops::RmsNormResult result = run(x, eps);
    context->save_for_backward({x, result.rstd});
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    return {
        ops::rms_norm_backward(gradients[0].contiguous(), saved[0], ones_for(saved[0]), saved[1],
                               /*dweight=*/at::Tensor(), /*beta=*/0, ops::RmsNormKind::kOlmo),
        at::Tensor()};
  }
};

}  // namespace

at::Tensor unit_rms_norm(const at::Tensor& x, double eps) {
  return UnitNormFunction::apply(x, eps);
}

Remakable remakable_unit_norm(const at::Tensor& x, double eps) {
  return {unit_rms_norm(x, eps), [kept = x.detach(), eps] { return run(kept, eps).y; }};
}

}  // namespace strata::nn
