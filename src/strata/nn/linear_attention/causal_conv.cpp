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

// Calls visit(shift, taps fp32 [channels]) for each tap but those beyond the rows.
template <typename Visit>
void for_each_tap(const at::Tensor& weight, int64_t num_rows, const Visit& visit) {
  const int64_t size = weight.size(2);
  // Products with strided taps are not vectorised.
  const at::Tensor taps = weight.squeeze(1).t().to(at::kFloat).contiguous();
  for (int64_t shift = 0; shift < std::min(size, num_rows); ++shift) {
    visit(shift, taps.select(0, size - 1 - shift));
  }
}

// In fp32, rounded to the type of x.
at::Tensor convolved(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                     const at::Tensor& positions) {
  const int64_t num_rows = x.size(0);
  const at::Tensor y = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  for_each_tap(weight.value(), num_rows, [&](int64_t shift, const at::Tensor& taps) {
    at::Tensor part = x.narrow(0, 0, num_rows - shift) * taps;
    if (shift > 0) part.mul_(reaches(positions, shift, at::kFloat));
    y.narrow(0, shift, num_rows - shift).add_(part);
  });
  if (bias != nullptr) y.add_(bias->value());
  // As the reference's convolution gives it.
  return y.to(x.scalar_type());
}

struct ConvCall {
  Parameter* weight;
  Parameter* bias;
  at::Tensor positions;

  at::Tensor of(const at::Tensor& x) const { return convolved(x, *weight, bias, positions); }
  // The gradient of x in fp32 by that of the sums; those of the weights go where they belong.
  at::Tensor backward(const at::Tensor& x, const at::Tensor& dsums) const;
};

at::Tensor ConvCall::backward(const at::Tensor& x, const at::Tensor& dsums) const {
  const at::Tensor& values = weight->value();
  const int64_t num_rows = x.size(0);
  const at::Tensor dx = at::zeros_like(dsums);
  const bool trains = weight->requires_grad();
  const at::Tensor dweight = trains ? at::zeros(values.sizes(), dsums.options()) : at::Tensor();
  for_each_tap(values, num_rows, [&](int64_t shift, const at::Tensor& taps) {
    at::Tensor part = dsums.narrow(0, shift, num_rows - shift);
    if (shift > 0) part = part * reaches(positions, shift, at::kFloat);
    dx.narrow(0, 0, num_rows - shift).add_(part * taps);
    if (!trains) return;
    dweight.select(2, values.size(2) - 1 - shift)
        .select(1, 0)
        .copy_((part * x.narrow(0, 0, num_rows - shift)).sum(0));
  });
  if (trains) weight->accumulate_grad(dweight);
  if (bias != nullptr && bias->requires_grad()) bias->accumulate_grad(dsums.sum(0));
  return dx;
}

struct ConvFunction : torch::autograd::Function<ConvFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ConvCall& call) {
    const ActivityTimer timer(Activity::kElementWise);
    const at::Tensor sums = call.of(x).to(at::kFloat);
    context->save_for_backward({x});
    save_state(context, call);
    return at::silu(sums).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<ConvCall>(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor dsums =
        at::silu_backward(gradients[0].to(at::kFloat), call.of(x).to(at::kFloat));
    return {call.backward(x, dsums).to(x.scalar_type()), at::Tensor()};
  }
};

struct GatedConvFunction : torch::autograd::Function<GatedConvFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gates,
                            const ConvCall& call) {
    const ActivityTimer timer(Activity::kElementWise);
    context->save_for_backward({gates});
    save_state(context, call);
    const auto parts = gates.chunk(3, 1);
    return parts[1] * call.of(parts[0] * parts[2]);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<ConvCall>(context);
    const at::Tensor gates = context->get_saved_variables()[0];
    const auto parts = gates.chunk(3, 1);
    const at::Tensor inputs = parts[0] * parts[2], dy = gradients[0].to(at::kFloat);
    const at::Tensor dgates = at::empty_like(gates);
    const auto d = dgates.chunk(3, 1);
    d[1].copy_(dy * call.of(inputs));
    const at::Tensor dinputs = call.backward(inputs, dy * parts[1]);
    d[0].copy_(dinputs * parts[2]);
    d[2].copy_(dinputs * parts[0]);
    return {dgates, at::Tensor()};
  }
};

// The convolution of what follows `before`.
at::Tensor convolved_after(at::Tensor& before, const at::Tensor& x, const Parameter& weight,
                           const Parameter* bias) {
  const int64_t reach = weight.shape()[2] - 1;
  if (!before.defined()) before = at::zeros({reach, x.size(1)}, x.options());
  const at::Tensor all = at::cat({before, x});
  const at::Tensor positions = at::arange(all.size(0), all.options().dtype(at::kLong));
  before = all.narrow(0, all.size(0) - reach, reach).clone();
  return convolved(all, weight, bias, positions).narrow(0, reach, x.size(0));
}

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& x, Parameter& weight, const Batch& batch,
                            Parameter* bias) {
  return ConvFunction::apply(x, ConvCall{&weight, bias, batch.positions});
}

at::Tensor causal_conv_silu_after(at::Tensor& before, const at::Tensor& x, const Parameter& weight,
                                  const Parameter* bias) {
  return at::silu(convolved_after(before, x, weight, bias).to(at::kFloat)).to(x.scalar_type());
}

at::Tensor gated_causal_conv(const at::Tensor& gates, Parameter& weight, const Batch& batch,
                             Parameter* bias) {
  return GatedConvFunction::apply(gates, ConvCall{&weight, bias, batch.positions});
}

at::Tensor gated_causal_conv_after(at::Tensor& before, const at::Tensor& gates,
                                   const Parameter& weight, const Parameter* bias) {
  const auto parts = gates.chunk(3, 1);
  return parts[1] * convolved_after(before, parts[0] * parts[2], weight, bias);
}

}  // namespace strata::nn
