#include "strata/nn/reward_loss.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/libtorch/host_copies.h"

namespace strata::nn {

at::Tensor rewarded_rows(const at::Tensor& x, const ForwardContext& context) {
  std::vector<int64_t> rows;
  if (context.head.rewards != nullptr) {
    rows = context.head.rewards->rows;
  } else {
    const std::vector<int64_t>& offsets = context.batch->offsets;
    for (size_t d = 1; d < offsets.size(); ++d) rows.push_back(offsets[d] - 1);
  }
  return x.index_select(0, to_device(at::tensor(rows, at::kLong), x.device()));
}

at::Tensor reward_loss(const at::Tensor& rewards, const ForwardContext& context) {
  if (rewards.size(0) % 2 != 0) {
    throw InternalError("rewards: found {} documents, expected pairs", rewards.size(0));
  }
  const at::Tensor pairs = rewards.to(at::kFloat).view({-1, 2});
  const at::Tensor chosen = pairs.select(1, 0), rejected = pairs.select(1, 1);
  // -log sigmoid, of which plans know no shape.
  at::Tensor loss = at::softplus(rejected - chosen).sum();
  const Rewards* asked = context.head.rewards;
  if (asked != nullptr && asked->center_coefficient != 0) {
    loss = loss + asked->center_coefficient * (chosen + rejected).square().sum();
  }
  if (asked != nullptr && !rewards.is_meta()) {
    const at::Tensor found = pairs.detach().reshape({-1}).cpu().to(at::kDouble);
    const double* first = found.const_data_ptr<double>();
    context.head.rewards->values.assign(first, first + found.numel());
    if (context.head.sums != nullptr) context.head.sums->loss += loss.item<double>();
  }
  return loss * context.head.loss_scale;
}

}  // namespace strata::nn
