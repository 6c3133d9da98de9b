// Cross-entropy: checks, choice of the device, sums over the rows. The kernel is in
// cross_entropy_cpu.cpp.
#include "strata/ops/cross_entropy.h"

#include <vector>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"

namespace strata::ops {

CrossEntropySums cross_entropy_(at::Tensor logits, const at::Tensor& targets, float scale,
                                bool want_gradient) {
  constexpr const char* kOp = "cross_entropy";
  check_device_or_plan(kOp, logits);
  if (logits.dim() != 2) check_shape(kOp, "logits", logits, {-1, -1});
  check_type(kOp, "logits", logits, at::kFloat);
  check_contiguous(kOp, "logits", logits);
  check_shape(kOp, "targets", targets, {logits.size(0)});
  check_type(kOp, "targets", targets, at::kLong);
  check_contiguous(kOp, "targets", targets);
  if (logits.is_meta()) return {};
  const ActivityTimer timer(Activity::kLoss);
  const int64_t rows = logits.size(0);
  const int64_t vocabulary = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r) {
    if (target[r] != -100 && (target[r] < 0 || target[r] >= vocabulary)) {
      throw FormatError(
          "targets[{}]: found token id {}, expected 0 .. {} or -100; use the tokenizer that "
          "belongs "
          "to the model",
          r, target[r], vocabulary - 1);
    }
  }
  std::vector<cpu::CrossEntropyRow> row_sums(rows);
  cpu::cross_entropy(logits.mutable_data_ptr<float>(), target, rows, vocabulary, scale,
                     want_gradient, row_sums.data());
  CrossEntropySums sums;
  for (const cpu::CrossEntropyRow& row : row_sums) {
    sums.loss += row.loss;
    sums.entropy += row.entropy;
    sums.correct += row.correct;
    sums.tokens += row.counted;
  }
  return sums;
}

}  // namespace strata::ops
