// Cross-entropy of a chunk of logits, fused with its gradient and the figures that training logs.
// Owns: the check of the arguments and the choice of the device. Never: the product that makes the
// logits, nor the chunking.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

// Sums over the rows whose target is not -100.
struct CrossEntropySums {
  double loss = 0;     // of -log p(target), in nats, smoothed as the options say
  double correct = 0;  // rows whose target is the first largest logit
  double entropy = 0;  // of the entropies of the predictions, in nats
  int64_t tokens = 0;  // number of such rows
};

// `logits` fp32 [R, V], on a GPU also bf16 or fp16 (the arithmetic is fp32), contiguous; `targets`
// int64 [R] on the CPU or the device of the logits, on the CPU checked: a target outside 0 .. V-1
// is a FormatError. With `want_gradient` the logits are overwritten by scale * d(loss) / d(logits),
// rows of target -100 by zeros; otherwise what they hold is not defined with a softcap, and they
// are left alone without. The sums do not depend on the number of threads.
CrossEntropySums cross_entropy_(at::Tensor logits, const at::Tensor& targets, float scale,
                                bool want_gradient, const CrossEntropyOptions& options = {});

// A target that is neither -100 nor in 0 .. V-1: FormatError. `targets` on the CPU.
void check_targets(const at::Tensor& targets, int64_t vocabulary);

// The same in two steps, so that several chunks are waited for once: what each row gives, and the
// sums over rows. `rows`: bytes [R, cross_entropy_row_bytes()] on the device of the logits.
int64_t cross_entropy_row_bytes();
void cross_entropy_rows_(at::Tensor logits, const at::Tensor& targets, float scale,
                         bool want_gradient, at::Tensor rows,
                         const CrossEntropyOptions& options = {});
// `rows` on the CPU.
CrossEntropySums sum_cross_entropy_rows(const at::Tensor& rows);

}  // namespace strata::ops
