#include "strata/nn/prefix_projection.h"

#include <ATen/ATen.h>

namespace strata::nn {

PrefixProjection::PrefixProjection(const std::string& base, const Sizes& sizes)
    : embedding_(base + "embedding.weight", {sizes.count, sizes.input}, at::kFloat),
      first_(base + "transform.0.weight", {sizes.hidden, sizes.input}, at::kFloat),
      first_bias_(base + "transform.0.bias", {sizes.hidden}, at::kFloat),
      second_(base + "transform.2.weight", {sizes.output, sizes.hidden}, at::kFloat),
      second_bias_(base + "transform.2.bias", {sizes.output}, at::kFloat),
      result_(std::make_shared<Parameter>(
          base + "result", std::vector<int64_t>{sizes.count, sizes.output}, at::kFloat)) {
  embedding_.set_embedding_table();
}

std::vector<Parameter*> PrefixProjection::parameters() {
  return {&embedding_, &first_, &first_bias_, &second_, &second_bias_};
}

void PrefixProjection::project() {
  hidden_ = at::tanh(at::addmm(first_bias_.value(), embedding_.value(), first_.value().t()));
  result_->attach_value(at::addmm(second_bias_.value(), hidden_, second_.value().t()));
  if (gradient_.defined()) return;
  gradient_ = at::empty(result_->shape(), hidden_.options().dtype(at::kFloat));
  result_->attach_grad(gradient_, /*overwrite=*/true);
}

void PrefixProjection::backward() {
  const at::Tensor drows = gradient_.to(hidden_.scalar_type());
  result_->detach_grad();
  gradient_ = at::Tensor();
  second_.accumulate_grad_product(drows, hidden_);
  second_bias_.accumulate_grad(drows.sum(0));
  // tanh' = 1 - tanh^2
  const at::Tensor dsum = at::mm(drows, second_.value()) * (1 - hidden_.square());
  first_.accumulate_grad_product(dsum, embedding_.value());
  first_bias_.accumulate_grad(dsum.sum(0));
  embedding_.accumulate_grad(at::mm(dsum, first_.value()));
}

at::Tensor PrefixProjection::rows_of(const std::vector<at::Tensor>& weights) {
  const at::Tensor hidden = at::tanh(at::addmm(weights[2], weights[0], weights[1].t()));
  return at::addmm(weights[4], hidden, weights[3].t());
}

}  // namespace strata::nn
