#include "strata/nn/document_loss.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/libtorch/host_copies.h"
#include "strata/nn/chosen_rows.h"

namespace strata::nn {
namespace {

at::Tensor loss_of_pairs(const at::Tensor& rewards, const DocumentTask& task) {
  if (rewards.numel() % 2 != 0) {
    throw InternalError("rewards: found {} documents, expected pairs", rewards.numel());
  }
  const at::Tensor pairs = rewards.view({-1, 2});
  const at::Tensor chosen = pairs.select(1, 0), rejected = pairs.select(1, 1);
  at::Tensor loss = at::softplus(rejected - chosen).sum();
  if (task.center_coefficient != 0) {
    loss = loss + task.center_coefficient * (chosen + rejected).square().sum();
  }
  return loss;
}

// [D] or [D, L], as the loss wants them.
at::Tensor targets_of(const DocumentTask& task, const at::Tensor& values) {
  const bool are_classes = task.loss == DocumentLoss::kClasses;
  const int64_t expected = are_classes ? values.size(0) : values.numel();
  if (static_cast<int64_t>(task.targets.size()) != expected) {
    throw InternalError("documents: found {} targets, expected {}", task.targets.size(), expected);
  }
  const at::Tensor targets = at::tensor(task.targets, at::kFloat);
  return to_device(are_classes ? targets.to(at::kLong) : targets.view(values.sizes()),
                   values.device());
}

at::Tensor loss_of_documents(const at::Tensor& all, const DocumentTask& task,
                             float label_smoothing) {
  const int64_t count = task.num_counted < 0 ? all.size(0) : task.num_counted;
  const at::Tensor values = all.narrow(0, 0, count);
  const at::Tensor targets = targets_of(task, all).narrow(0, 0, count);
  if (task.loss == DocumentLoss::kClasses) {
    return at::cross_entropy_loss(values, targets, {}, at::Reduction::Sum, /*ignore_index=*/-100,
                                  label_smoothing);
  }
  const at::Tensor losses =
      task.loss == DocumentLoss::kLabels
          ? at::binary_cross_entropy_with_logits(values, targets, {}, {}, at::Reduction::None)
          : (values - targets).square();
  return losses.sum() / static_cast<double>(all.size(1));
}

}  // namespace

at::Tensor document_rows(const at::Tensor& x, const ForwardContext& context) {
  std::vector<int64_t> rows;
  if (context.head.documents != nullptr) {
    rows = context.head.documents->rows;
  } else {
    const std::vector<int64_t>& offsets = context.batch->offsets;
    for (size_t d = 1; d < offsets.size(); ++d) rows.push_back(offsets[d] - 1);
  }
  return chosen_rows(x, to_device(at::tensor(rows, at::kLong), x.device()));
}

at::Tensor document_means(const at::Tensor& x, const ForwardContext& context) {
  const std::vector<int64_t>& offsets = context.batch->offsets;
  std::vector<at::Tensor> means;
  for (size_t d = 1; d < offsets.size(); ++d) {
    const at::Tensor rows = x.narrow(0, offsets[d - 1], offsets[d] - offsets[d - 1]);
    means.push_back(at::mean(rows, at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
  }
  return at::stack(means).to(x.scalar_type());
}

at::Tensor document_loss(const at::Tensor& values, const ForwardContext& context) {
  const at::Tensor numbers = values.to(at::kFloat);
  DocumentTask* task = context.head.documents;
  // A memory plan, which knows no shape of other losses.
  if (task == nullptr) return at::softplus(numbers).sum() * context.head.loss_scale;
  const at::Tensor loss = task->loss == DocumentLoss::kPairs
                              ? loss_of_pairs(numbers, *task)
                              : loss_of_documents(numbers, *task, context.head.label_smoothing);
  const at::Tensor found = numbers.detach().reshape({-1}).cpu().to(at::kDouble);
  const double* first = found.const_data_ptr<double>();
  task->values.assign(first, first + found.numel());
  if (context.head.sums != nullptr) context.head.sums->loss += loss.item<double>();
  return loss * context.head.loss_scale;
}

}  // namespace strata::nn
