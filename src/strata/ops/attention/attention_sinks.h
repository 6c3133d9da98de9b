// Attention sinks: a learned number a head that stands among a query's scores and has no value
// (gpt-oss; Miller 2023). Owns: what a sink makes of plain attention's result, and its gradient.
// Never: attention itself.
//
// With a row's output O and logsumexp L, the row with a sink s has L' = log(e^L + e^s) and
// O' = e^(L - L') O. The gradients of q, k and v are those of plain attention with O' and L' in the
// places of O and L: p' = e^(score - L'), and the sink adds nothing to rowsum(dO' O').
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/attention/attention.h"

namespace strata::ops {

// Writes both into `result`, of [T, Hq, D] and [Hq, T]. `sinks`: [Hq], of any floating type.
void add_attention_sinks_(const AttentionResult& result, const at::Tensor& sinks);

// fp32 [Hq]: the sum over rows of -e^(s - L') rowsum(dO' O'), in the order of the rows. `dout` as
// `result.out`.
at::Tensor attention_sinks_gradient(const at::Tensor& dout, const AttentionResult& result,
                                    const at::Tensor& sinks);

}  // namespace strata::ops
