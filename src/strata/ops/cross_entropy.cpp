// Cross-entropy: checks, choice of the device, sums over the rows. The kernels are in
// cross_entropy_cpu.cpp and cross_entropy_cuda.cu.
#include "strata/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/base/labels.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "cross_entropy";

}  // namespace

void check_targets(const at::Tensor& targets, int64_t vocabulary) {
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < targets.size(0); ++r) {
    if (target[r] != kNotTrained && (target[r] < 0 || target[r] >= vocabulary)) {
      throw FormatError(
          "targets[{}]: found token id {}, expected 0 .. {} or -100; use the tokenizer that "
          "belongs "
          "to the model",
          r, target[r], vocabulary - 1);
    }
  }
}

int64_t cross_entropy_row_bytes() { return static_cast<int64_t>(sizeof(CrossEntropyRow)); }

void cross_entropy_rows_(at::Tensor logits, const at::Tensor& targets, float scale,
                         bool want_gradient, at::Tensor rows, const CrossEntropyOptions& options) {
  check_device_or_plan(kOp, logits);
  if (logits.dim() != 2) check_shape(kOp, "logits", logits, {-1, -1});
  if (!logits.is_cuda() && !logits.is_meta()) check_type(kOp, "logits", logits, at::kFloat);
  // On a GPU rows may be apart.
  is_for_cuda(logits) ? check_last_dim_contiguous(kOp, "logits", logits)
                      : check_contiguous(kOp, "logits", logits);
  check_shape(kOp, "targets", targets, {logits.size(0)});
  check_type(kOp, "targets", targets, at::kLong);
  check_contiguous(kOp, "targets", targets);
  check_shape(kOp, "rows", rows, {logits.size(0), cross_entropy_row_bytes()});
  if (logits.is_meta()) return;
  const ActivityTimer timer(Activity::kLoss);
  if (targets.is_cpu()) check_targets(targets, logits.size(1));
  auto* row = reinterpret_cast<CrossEntropyRow*>(rows.mutable_data_ptr());
  if constexpr (kHasCuda) {
    if (logits.is_cuda()) {
      const at::Tensor on_device = targets.to(logits.device(), /*non_blocking=*/true);
      return cuda::cross_entropy({.type = element_of(kOp, "logits", logits),
                                  .data = logits.mutable_data_ptr(),
                                  .rows = logits.size(0),
                                  .vocabulary = logits.size(1),
                                  .stride = logits.stride(0)},
                                 on_device.const_data_ptr<int64_t>(), scale, want_gradient, options,
                                 row, cuda::current_stream(logits));
    }
  }
  cpu::cross_entropy(logits.mutable_data_ptr<float>(), targets.const_data_ptr<int64_t>(),
                     logits.size(0), logits.size(1), scale, want_gradient, options, row);
}

CrossEntropySums sum_cross_entropy_rows(const at::Tensor& rows) {
  CrossEntropySums sums;
  if (rows.is_meta()) return sums;
  const ActivityTimer timer(Activity::kLoss);
  const auto* row = reinterpret_cast<const CrossEntropyRow*>(rows.const_data_ptr());
  for (int64_t r = 0; r < rows.size(0); ++r) {
    sums.loss += row[r].loss;
    sums.entropy += row[r].entropy;
    sums.correct += row[r].correct;
    sums.tokens += row[r].counted;
  }
  return sums;
}

CrossEntropySums cross_entropy_(at::Tensor logits, const at::Tensor& targets, float scale,
                                bool want_gradient, const CrossEntropyOptions& options) {
  const at::Tensor rows =
      at::empty({logits.size(0), cross_entropy_row_bytes()}, logits.options().dtype(at::kByte));
  cross_entropy_rows_(logits, targets, scale, want_gradient, rows, options);
  return sum_cross_entropy_rows(rows.is_cuda() ? rows.cpu() : rows);
}

}  // namespace strata::ops
