#include "strata/nn/prefix_projection.h"

#include <ATen/ATen.h>

#include "strata/ops/matmul/matmul.h"

namespace strata::nn {

namespace {

// x weight^T + bias, rounded once.
at::Tensor transformed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor y = bias.expand({x.size(0), weight.size(0)}).contiguous();
  ops::matmul_into(y, x, weight, {.b = true}, /*beta=*/1);
  return y;
}

}  // namespace

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
  hidden_ = at::tanh(transformed(embedding_.value(), first_.value(), first_bias_.value()));
  result_->attach_value(transformed(hidden_, second_.value(), second_bias_.value()));
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
  const at::Tensor dsum = ops::matmul(drows, second_.value()) * (1 - hidden_.square());
  first_.accumulate_grad_product(dsum, embedding_.value());
  first_bias_.accumulate_grad(dsum.sum(0));
  embedding_.accumulate_grad(ops::matmul(dsum, first_.value()));
}

at::Tensor PrefixProjection::rows_of(const std::vector<at::Tensor>& weights) {
  const at::Tensor hidden = at::tanh(transformed(weights[0], weights[1], weights[2]));
  return transformed(hidden, weights[3], weights[4]);
}

}  // namespace strata::nn
