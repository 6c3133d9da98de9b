// Cross-entropy of a chunk of logits, fused with its gradient and the figures that training logs.
// Owns: the check of the arguments and the choice of the device. Never: the product that makes the
// logits, nor the chunking.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// Sums over the rows whose target is not -100.
struct CrossEntropySums {
  double loss = 0;     // of -log p(target), in nats
  double correct = 0;  // rows whose target is the first largest logit
  double entropy = 0;  // of the entropies of the predictions, in nats
  int64_t tokens = 0;  // number of such rows
};

// `logits` fp32 [R, V], contiguous; `targets` int64 [R] on the CPU or the device of the logits.
// With `want_gradient` the logits are overwritten by scale * d(loss) / d(logits), rows of target
// -100 by zeros; otherwise they are left alone. A target outside 0 .. V-1: FormatError.
// The sums do not depend on the number of threads.
CrossEntropySums cross_entropy_(at::Tensor logits, const at::Tensor& targets, float scale,
                                bool want_gradient);

}  // namespace strata::ops
