#include "strata/nn/linear_attention/column_scales.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ScaleCall {
  std::vector<ColumnScale> scales;
};

at::Tensor scaled(const at::Tensor& x, const ScaleCall& call) {
  const ActivityTimer timer(Activity::kElementWise);
  const at::Tensor y = x.clone();
  int64_t begin = 0;
  for (const ColumnScale& scale : call.scales) {
    if (scale.factor != 1.0) y.narrow(1, begin, scale.columns).mul_(scale.factor);
    begin += scale.columns;
  }
  return y;
}

struct ColumnScaleFunction : torch::autograd::Function<ColumnScaleFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ScaleCall& call) {
    save_state(context, call);
    return scaled(x, call);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {scaled(gradients[0], load_state<ScaleCall>(context)), at::Tensor()};
  }
};

}  // namespace

at::Tensor scale_columns(const at::Tensor& x, const std::vector<ColumnScale>& scales) {
  return ColumnScaleFunction::apply(x, ScaleCall{scales});
}

}  // namespace strata::nn
