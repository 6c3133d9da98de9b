#include "strata/nn/linear_attention/gated_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormCall {
  Parameter* weight;
  GatedNorm::Options options;

  // [T, groups, channels of a group].
  at::Tensor by_group(const at::Tensor& x) const {
    return x.unflatten(1, {options.num_groups, options.channels / options.num_groups});
  }
};

// Normalised groups.
struct Normed {
  at::Tensor value, factor;  // value = factor * what was normalised
};

// x fp32 [T, channels].
Normed normalise(const at::Tensor& x, const NormCall& call) {
  const at::Tensor grouped = call.by_group(x);
  const at::Tensor mean = (grouped * grouped).mean(at::IntArrayRef{2}, /*keepdim=*/true);
  const at::Tensor factor = mean.add_(call.options.eps).rsqrt_();
  return {grouped * factor, factor};
}

// The gradient of what was normalised, by that of `normed` times the weight; writes the weight's.
at::Tensor normalise_backward(const at::Tensor& dout, const Normed& normed, const NormCall& call) {
  if (call.weight->requires_grad()) {
    call.weight->accumulate_grad((dout * normed.value.flatten(1)).sum(0));
  }
  const at::Tensor dnormed = call.by_group(dout * call.weight->value());
  const at::Tensor along = (dnormed * normed.value).mean(at::IntArrayRef{2}, /*keepdim=*/true);
  return ((dnormed - normed.value * along) * normed.factor).flatten(1);
}

struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& z,
                            const NormCall& call) {
    const ActivityTimer timer(Activity::kElementWise);
    context->save_for_backward({y, z});
    save_state(context, call);
    const at::Tensor gate = at::silu(z.to(at::kFloat)), of_y = y.to(at::kFloat);
    const bool gate_first = call.options.gate_comes_first;
    const Normed normed = normalise(gate_first ? of_y * gate : of_y, call);
    const at::Tensor weighted = normed.value.flatten(1) * call.weight->value();
    return (gate_first ? weighted : weighted * gate).to(y.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<NormCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], z = saved[1].to(at::kFloat), gate = at::silu(z);
    const at::Tensor dout = gradients[0].to(at::kFloat);
    at::Tensor dy, dgate;
    if (call.options.gate_comes_first) {
      const at::Tensor dgated =
          normalise_backward(dout, normalise(y.to(at::kFloat) * gate, call), call);
      dy = dgated * gate;
      dgate = dgated * y;
    } else {
      const Normed normed = normalise(y.to(at::kFloat), call);
      dgate = dout * normed.value.flatten(1) * call.weight->value();
      dy = normalise_backward(dout * gate, normed, call);
    }
    return {dy.to(y.scalar_type()), at::silu_backward(dgate, z).to(saved[1].scalar_type()),
            at::Tensor()};
  }
};

}  // namespace

GatedNorm::GatedNorm(const std::string& path, const Options& options, at::ScalarType storage)
    : weight_(path + ".weight", {options.channels}, storage), options_(options) {}

at::Tensor GatedNorm::forward(const at::Tensor& y, const at::Tensor& z) {
  return GatedNormFunction::apply(y, z, NormCall{&weight_, options_});
}

}  // namespace strata::nn
