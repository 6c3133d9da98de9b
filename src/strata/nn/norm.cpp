#include "strata/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/error.h"
#include "strata/libtorch/plain_view.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/function_state.h"
#include "strata/ops/rms_norm.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor in_shape_of(const at::Tensor& x, const at::Tensor& rows) {
  return rows.sizes() == x.sizes() ? rows : plain_view(rows, 0, x.sizes());
}

struct NormCall {
  Parameter* weight;
  double eps;
  ops::RmsNormKind kind;

  ops::RmsNormResult run(const at::Tensor& x) const {
    return ops::rms_norm(x, weight->value(), eps, kind);
  }

  // The rows that are normalised: x, or of each of its rows as many as the weight fits into.
  at::Tensor rows(const at::Tensor& x) const {
    const int64_t width = weight->shape()[0];
    if (x.size(1) % width != 0) {
      throw InternalError("norm \"{}\": found {} channels, expected a multiple of {}",
                          weight->name(), x.size(1), width);
    }
    return x.size(1) == width ? x : plain_view(x, 0, {x.numel() / width, width});
  }
  at::Tensor again(const at::Tensor& x) const { return in_shape_of(x, run(rows(x)).y); }
};

GradTarget weight_target(Parameter& weight) {
  return weight.requires_grad() ? weight.grad() : GradTarget{at::Tensor(), 0.0f};
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const NormCall& call, const at::Tensor& x) {
    const WithoutAutograd plain;
    const ops::RmsNormResult result = call.run(call.rows(x));
    context->save_for_backward({x, result.rstd});
    save_state(context, call);
    return in_shape_of(x, result.y);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<NormCall>(context);
    Parameter& weight = *call.weight;
    const variable_list saved = context->get_saved_variables();
    const GradTarget target = weight_target(weight);
    const at::Tensor dx =
        ops::rms_norm_backward(call.rows(gradients[0].contiguous()), call.rows(saved[0]),
                               weight.value(), saved[1], target.tensor, target.beta, call.kind);
    return {at::Tensor(), in_shape_of(saved[0], dx)};
  }
};

struct RmsNormResidualFunction : torch::autograd::Function<RmsNormResidualFunction> {
  static variable_list forward(AutogradContext* context, const NormCall& call,
                               const at::Tensor& x) {
    const WithoutAutograd plain;
    ops::RmsNormResult result = call.run(x);
    context->save_for_backward({x, result.rstd});
    save_state(context, call);
    return {result.y, x.alias()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<NormCall>(context);
    Parameter& weight = *call.weight;
    const variable_list saved = context->get_saved_variables();
    const GradTarget target = weight_target(weight);
    return {at::Tensor(), ops::rms_norm_backward_add(
                              gradients[0].contiguous(), saved[0], weight.value(), saved[1],
                              target.tensor, target.beta, gradients[1].contiguous(), call.kind)};
  }
};

}  // namespace

RmsNorm::RmsNorm(const std::string& path, int64_t hidden, double eps, at::ScalarType storage,
                 ops::RmsNormKind kind, const std::string& weight)
    : weight_(path + "." + weight, {hidden}, storage), eps_(eps), kind_(kind) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) {
  return RmsNormFunction::apply(NormCall{&weight_, eps_, kind_}, x);
}

Remakable RmsNorm::forward_remakable(const at::Tensor& x) {
  const NormCall call{&weight_, eps_, kind_};
  return {RmsNormFunction::apply(call, x), [call, kept = x.detach()] { return call.again(kept); }};
}

RmsNorm::Branches RmsNorm::forward_with_residual(const at::Tensor& x) {
  const NormCall call{&weight_, eps_, kind_};
  const variable_list outputs = RmsNormResidualFunction::apply(call, x);
  // The weight is gathered in the block's backward pass too.
  const auto again = [call, kept = x.detach()] { return call.again(kept); };
  return {{outputs[0], again}, outputs[1]};
}

}  // namespace strata::nn
