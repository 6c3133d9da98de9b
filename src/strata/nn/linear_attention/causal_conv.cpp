#include "strata/nn/linear_attention/causal_conv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [T - shift, 1], 1 where the token `shift` before is of the same document.
at::Tensor reaches(const at::Tensor& positions, int64_t shift, at::ScalarType type) {
  return positions.narrow(0, shift, positions.size(0) - shift).ge(shift).to(type).unsqueeze(1);
}

// Calls visit(shift, taps [channels]) for each tap but those beyond the rows.
template <typename Visit>
void for_each_tap(const at::Tensor& weight, int64_t num_rows, const Visit& visit) {
  const int64_t size = weight.size(2);
  for (int64_t shift = 0; shift < std::min(size, num_rows); ++shift) {
    visit(shift, weight.select(2, size - 1 - shift).squeeze(1));
  }
}

// Before SiLU, in fp32.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& positions) {
  const int64_t num_rows = x.size(0);
  const at::Tensor y = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for_each_tap(weight, num_rows, [&](int64_t shift, const at::Tensor& taps) {
    at::Tensor part = x.narrow(0, 0, num_rows - shift) * taps.to(at::kFloat);
    if (shift > 0) part.mul_(reaches(positions, shift, at::kFloat));
    y.narrow(0, shift, num_rows - shift).add_(part);
  });
  // As the reference's convolution gives it.
  return y.to(x.scalar_type()).to(at::kFloat);
}

struct ConvCall {
  Parameter* weight;
  at::Tensor positions;
};

struct ConvFunction : torch::autograd::Function<ConvFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ConvCall& call) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor sums = convolved(x, call.weight->value(), call.positions);
    context->save_for_backward({x});
    save_state(context, call);
    return at::silu(sums).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<ConvCall>(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor& weight = call.weight->value();
    const int64_t num_rows = x.size(0);
    const at::Tensor dsums =
        at::silu_backward(gradients[0].to(at::kFloat), convolved(x, weight, call.positions));
    const at::Tensor dx = at::zeros_like(dsums);
    const bool trains = call.weight->requires_grad();
    const at::Tensor dweight = trains ? at::zeros(weight.sizes(), dsums.options()) : at::Tensor();
    for_each_tap(weight, num_rows, [&](int64_t shift, const at::Tensor& taps) {
      at::Tensor part = dsums.narrow(0, shift, num_rows - shift);
      if (shift > 0) part = part * reaches(call.positions, shift, at::kFloat);
      dx.narrow(0, 0, num_rows - shift).add_(part * taps.to(at::kFloat));
      if (!trains) return;
      dweight.select(2, weight.size(2) - 1 - shift)
          .select(1, 0)
          .copy_((part * x.narrow(0, 0, num_rows - shift)).sum(0));
    });
    if (trains) call.weight->accumulate_grad(dweight);
    return {dx.to(x.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& x, Parameter& weight, const Batch& batch) {
  return ConvFunction::apply(x, ConvCall{&weight, batch.positions});
}

at::Tensor causal_conv_silu_after(at::Tensor& before, const at::Tensor& x,
                                  const Parameter& weight) {
  const int64_t reach = weight.shape()[2] - 1;
  if (!before.defined()) before = at::zeros({reach, x.size(1)}, x.options());
  const at::Tensor all = at::cat({before, x});
  const at::Tensor positions = at::arange(all.size(0), all.options().dtype(at::kLong));
  const at::Tensor sums = convolved(all, weight.value(), positions);
  before = all.narrow(0, all.size(0) - reach, reach).clone();
  return at::silu(sums.narrow(0, reach, x.size(0))).to(x.scalar_type());
}

}  // namespace strata::nn
