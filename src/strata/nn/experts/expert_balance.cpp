#include "strata/nn/experts/expert_balance.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/comm/group.h"

namespace strata::nn {

void ExpertBalance::add(const at::Tensor& probabilities, const at::Tensor& chosen,
                        int64_t num_tokens) {
  if (is_complete_) {
    throw InternalError(
        "expert balance: found a layer that adds after backward began, expected each to add once");
  }
  const int64_t num_experts = probabilities.size(1);
  if (!choices_.defined()) {
    choices_ = at::zeros({num_experts}, chosen.options());
    probabilities_ = at::zeros({num_experts}, probabilities.options());
  }
  // Integers, so that the order of addition is none.
  choices_.scatter_add_(0, chosen.reshape({-1}),
                        at::ones({1}, chosen.options()).expand({chosen.numel()}));
  probabilities_.add_(probabilities.sum(/*dim=*/0));
  num_rows_ += num_tokens;
}

void ExpertBalance::complete() {
  if (is_complete_) return;
  is_complete_ = true;
  if (sequence_ == nullptr || !choices_.defined()) return;
  // One sum for both; numbers of choices are integers in double, too.
  const at::Tensor sums = at::cat({choices_.to(at::kDouble), probabilities_.to(at::kDouble)});
  sequence_->all_reduce(sums)->wait();
  const int64_t experts = choices_.size(0);
  choices_ = sums.narrow(0, 0, experts).to(choices_.scalar_type());
  probabilities_ = sums.narrow(0, experts, experts).to(probabilities_.scalar_type());
}

const at::Tensor& ExpertBalance::gradient() {
  complete();
  if (!gradient_.defined()) {
    const double rows = static_cast<double>(num_rows_);
    const double experts = static_cast<double>(choices_.size(0));
    gradient_ = choices_.to(at::kFloat).mul_(scale_ * experts / (rows * rows));
  }
  return gradient_;
}

double ExpertBalance::loss() {
  complete();
  if (num_rows_ == 0) return 0;
  const double rows = static_cast<double>(num_rows_);
  const at::Tensor sum = choices_.to(at::kDouble).mul_(probabilities_).sum();
  return sum.item<double>() / rows / rows * static_cast<double>(choices_.size(0));
}

}  // namespace strata::nn
