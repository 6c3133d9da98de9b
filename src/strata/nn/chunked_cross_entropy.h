// Output layer and loss without ever holding all logits: rows are taken in chunks, and where a
// gradient is needed it is computed while the chunk's logits exist. Owns: that loop. Never: the
// final norm; the kernel of the loss (ops/cross_entropy.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/linear.h"

namespace strata::nn {

// h [T, hidden] -> fp32 scalar: sum over trained tokens of -log p(target), smoothed as the context
// says, times context.head.loss_scale. Adds to context.head.sums. When h requires grad (under grad
// mode) the gradients of h and of the layer's trainable weights are computed here; backward must
// start from 1, anything else is an InternalError. Rows with target -100 cost nothing. `softcap`:
// of the logits, see ops/cross_entropy.h. With context.head.preference the loss is the sum over its
// answers, and the gradients are those of that (preference.h). Memory: logits of one chunk, at
// most about 16 MB in fp32, and the gradient of h.
at::Tensor chunked_cross_entropy(const at::Tensor& h, const Linear& output,
                                 const ForwardContext& context, double softcap = 0);

}  // namespace strata::nn
