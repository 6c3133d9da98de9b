#include "strata/nn/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/ops/layer_norm.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormCall {
  Parameter* weight;  // null: ones
  Parameter* bias;    // null: zeros
  double eps;
  bool counts_from_one;  // the weight is the distance from 1 of what multiplies

  at::Tensor weight_for(const at::Tensor& x) const {
    if (weight == nullptr) return at::ones({x.size(1)}, x.options());
    return counts_from_one ? weight->value() + 1 : weight->value();
  }
  at::Tensor bias_for(const at::Tensor& x) const {
    return bias != nullptr ? bias->value() : at::zeros({x.size(1)}, x.options());
  }
  ops::LayerNormResult run(const at::Tensor& x) const {
    return ops::layer_norm(x, weight_for(x), bias_for(x), eps);
  }
};

ops::LayerNormTarget target_of(Parameter* parameter) {
  if (parameter == nullptr || !parameter->requires_grad()) return {};
  const GradTarget target = parameter->grad();
  return {target.tensor, target.beta};
}

at::Tensor backward_of(AutogradContext* context, const at::Tensor& dy, const at::Tensor& residual) {
  const auto& call = load_state<NormCall>(context);
  const variable_list saved = context->get_saved_variables();
  return ops::layer_norm_backward(dy.contiguous(), saved[0], call.weight_for(saved[0]), saved[1],
                                  saved[2], target_of(call.weight), target_of(call.bias), residual);
}

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* context, const NormCall& call, const at::Tensor& x) {
    ops::LayerNormResult result = call.run(x);
    context->save_for_backward({x, result.mean, result.rstd});
    save_state(context, call);
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {at::Tensor(), backward_of(context, gradients[0], at::Tensor())};
  }
};

struct LayerNormResidualFunction : torch::autograd::Function<LayerNormResidualFunction> {
  static variable_list forward(AutogradContext* context, const NormCall& call,
                               const at::Tensor& x) {
    ops::LayerNormResult result = call.run(x);
    context->save_for_backward({x, result.mean, result.rstd});
    save_state(context, call);
    return {result.y, x.alias()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {at::Tensor(), backward_of(context, gradients[0], gradients[1].contiguous())};
  }
};

}  // namespace

LayerNorm::LayerNorm(const std::string& path, int64_t hidden, double eps, at::ScalarType storage,
                     LayerNormAffine affine)
    : eps_(eps), counts_from_one_(affine == LayerNormAffine::kDistanceAndBias) {
  if (affine == LayerNormAffine::kNone) return;
  weight_.emplace(path + ".weight", std::vector<int64_t>{hidden}, storage);
  if (affine == LayerNormAffine::kWeight) return;
  bias_.emplace(path + ".bias", std::vector<int64_t>{hidden}, storage);
}

void LayerNorm::append_parameters(std::vector<Parameter*>& list) {
  if (weight_) list.push_back(&*weight_);
  if (bias_) list.push_back(&*bias_);
}

namespace {

NormCall call_of(std::optional<Parameter>& weight, std::optional<Parameter>& bias, double eps,
                 bool counts_from_one) {
  return {weight ? &*weight : nullptr, bias ? &*bias : nullptr, eps, counts_from_one};
}

}  // namespace

at::Tensor LayerNorm::forward(const at::Tensor& x) {
  return LayerNormFunction::apply(call_of(weight_, bias_, eps_, counts_from_one_), x);
}

LayerNorm::Branches LayerNorm::forward_with_residual(const at::Tensor& x) {
  const NormCall call = call_of(weight_, bias_, eps_, counts_from_one_);
  const variable_list outputs = LayerNormResidualFunction::apply(call, x);
  // Weight and bias are gathered in the block's backward pass too.
  const auto again = [call, kept = x.detach()] { return call.run(kept).y; };
  return {{outputs[0], again}, outputs[1]};
}

}  // namespace strata::nn
