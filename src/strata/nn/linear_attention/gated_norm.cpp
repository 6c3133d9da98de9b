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

// Of groups.
struct Normed {
  at::Tensor value, factor;  // value = factor * what was normalised
};

Normed normalise(const at::Tensor& y, const at::Tensor& gate, const NormCall& call) {
  const at::Tensor gated = call.by_group(y.to(at::kFloat) * gate);
  const at::Tensor mean = (gated * gated).mean(at::IntArrayRef{2}, /*keepdim=*/true);
  const at::Tensor factor = mean.add_(call.options.eps).rsqrt_();
  return {gated * factor, factor};
}

struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& z,
                            const NormCall& call) {
    const ActivityTimer timer(Activity::kElementWise);
    context->save_for_backward({y, z});
    save_state(context, call);
    const Normed normed = normalise(y, at::silu(z.to(at::kFloat)), call);
    return (normed.value.flatten(1) * call.weight->value()).to(y.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kElementWise);
    const auto& call = load_state<NormCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], z = saved[1].to(at::kFloat), gate = at::silu(z);
    const Normed normed = normalise(y, gate, call);
    const at::Tensor dout = gradients[0].to(at::kFloat);
    if (call.weight->requires_grad()) {
      call.weight->accumulate_grad((dout * normed.value.flatten(1)).sum(0));
    }
    const at::Tensor dnormed = call.by_group(dout * call.weight->value());
    const at::Tensor along = (dnormed * normed.value).mean(at::IntArrayRef{2}, /*keepdim=*/true);
    const at::Tensor dgated = ((dnormed - normed.value * along) * normed.factor).flatten(1);
    return {(dgated * gate).to(y.scalar_type()),
            at::silu_backward(dgated * y, z).to(saved[1].scalar_type()), at::Tensor()};
  }
};

}  // namespace

GatedNorm::GatedNorm(const std::string& path, const Options& options, at::ScalarType storage)
    : weight_(path + ".weight", {options.channels}, storage), options_(options) {}

at::Tensor GatedNorm::forward(const at::Tensor& y, const at::Tensor& z) {
  return GatedNormFunction::apply(y, z, NormCall{&weight_, options_});
}

}  // namespace strata::nn
