// Token embedding over a parameter. Owns: the autograd function around ops::embedding. Never: the
// kernel; which weight is tied to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// Rows of `weight` [V, H] for ids int64 [T]: [T, H]. `anchor` is any tensor; the result requires
// grad if it does (I4), and only then the weight's gradient is written. Tokens equal to
// `padding_id` give the weight no gradient, as in the reference's nn.Embedding.
at::Tensor embed(const at::Tensor& anchor, const at::Tensor& ids, Parameter& weight,
                 std::optional<int64_t> padding_id);

}  // namespace strata::nn
