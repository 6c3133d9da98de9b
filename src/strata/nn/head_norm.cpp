#include "strata/nn/head_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/nn/function_state.h"
#include "strata/ops/layer_norm.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadNormCall {
  std::vector<Parameter*> weights;
  int64_t num_heads;
  int64_t head_dim;
  double eps;

  // Heads as rows, fp32 [T * num_heads, head_dim].
  at::Tensor rows(const at::Tensor& x) const { return x.view({-1, head_dim}).to(at::kFloat); }
  // Rows, of which each token's are multiplied by the weights, in place.
  at::Tensor weighted_(const at::Tensor& rows) const {
    rows.view({-1, num_heads, head_dim}).mul_(weight());
    return rows;
  }
  // fp32 [num_heads, head_dim].
  at::Tensor weight() const {
    if (weights.size() == 1) {
      return weights[0]->value().view({num_heads, head_dim}).to(at::kFloat);
    }
    std::vector<at::Tensor> rows;
    for (const Parameter* one : weights) rows.push_back(one->value());
    return at::stack(rows).to(at::kFloat);
  }
  void write_gradient(const at::Tensor& gradient) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i]->requires_grad()) continue;
      weights[i]->accumulate_grad(weights.size() == 1
                                      ? gradient.view(weights[0]->shape())
                                      : gradient.select(0, static_cast<int64_t>(i)));
    }
  }
  bool trains() const {
    for (const Parameter* one : weights) {
      if (one->requires_grad()) return true;
    }
    return false;
  }
};

struct HeadNormFunction : torch::autograd::Function<HeadNormFunction> {
  static at::Tensor forward(AutogradContext* context, const HeadNormCall& call,
                            const at::Tensor& x) {
    const at::Tensor rows = call.rows(x);
    const at::Tensor ones = at::ones({call.head_dim}, rows.options());
    const ops::LayerNormResult result = ops::layer_norm(rows, ones, at::zeros_like(ones), call.eps);
    context->save_for_backward({x, result.mean, result.rstd});
    save_state(context, call);
    const ActivityTimer timer(Activity::kElementWise);
    return call.weighted_(result.y).to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<HeadNormCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor rows = call.rows(saved[0]);
    const at::Tensor ones = at::ones({call.head_dim}, rows.options());
    at::Tensor dy = call.rows(gradients[0].contiguous());
    if (call.trains()) {
      const ActivityTimer timer(Activity::kElementWise);
      const at::Tensor normed = (rows - saved[1].unsqueeze(1)).mul_(saved[2].unsqueeze(1)).mul_(dy);
      call.write_gradient(normed.view({-1, call.num_heads, call.head_dim}).sum(0));
    }
    dy = call.weighted_(dy.clone());
    const at::Tensor dx = ops::layer_norm_backward(dy, rows, ones, saved[1], saved[2], {}, {},
                                                   /*residual_grad=*/at::Tensor());
    return {at::Tensor(), dx.to(saved[0].scalar_type()).view(saved[0].sizes())};
  }
};

}  // namespace

HeadNorm::HeadNorm(const std::string& path, const HeadNormOptions& o, at::ScalarType storage)
    : options_(o) {
  if (o.weights == HeadNormWeights::kShared) {
    shared_.emplace(path, o.head_dim, o.eps, storage);
  } else if (o.weights == HeadNormWeights::kOfHeads) {
    weights_.push_back(std::make_unique<Parameter>(
        path + ".weight", std::vector<int64_t>{o.num_heads, o.head_dim}, storage));
  } else {
    for (int64_t i = 0; i < o.num_heads; ++i) {
      weights_.push_back(
          std::make_unique<Parameter>(path + ".norms." + std::to_string(i) + ".weight",
                                      std::vector<int64_t>{o.head_dim}, storage));
    }
  }
}

void HeadNorm::append_parameters(std::vector<Parameter*>& list) {
  if (shared_) shared_->append_parameters(list);
  for (const auto& weight : weights_) list.push_back(weight.get());
}

at::Tensor HeadNorm::forward(const at::Tensor& x) {
  if (shared_) return shared_->forward(x.reshape({-1, options_.head_dim})).view(x.sizes());
  HeadNormCall call{{}, options_.num_heads, options_.head_dim, options_.eps};
  for (const auto& weight : weights_) call.weights.push_back(weight.get());
  return HeadNormFunction::apply(call, x);
}

}  // namespace strata::nn
