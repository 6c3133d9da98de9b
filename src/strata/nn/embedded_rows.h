// What is done to the rows of embedded tokens before the first layer: a constant factor, noise, the
// rows of a prompt. Owns: those steps. Never: the table (nn/embedding.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// rows * scale, with the scale rounded to the type of the rows first, as transformers' Gemma does.
at::Tensor scale_rows(const at::Tensor& rows, double scale);

// NEFTune (Jain et al. 2023): rows [T, H] plus uniform noise of at most context.embedding_noise /
// sqrt(H) to each side, while training; drawn as dropout is (I6). In place: nothing else may read
// `rows`.
at::Tensor with_noise(const at::Tensor& rows, const ForwardContext& context);

// `x` [T, H] with the rows of `prompt` in the virtual places (nn/virtual_tokens.h). `anchor`: as
// for embed(), of the prompt.
at::Tensor with_prompt(const at::Tensor& x, const at::Tensor& anchor, const Batch& batch,
                       Parameter& prompt);

}  // namespace strata::nn
