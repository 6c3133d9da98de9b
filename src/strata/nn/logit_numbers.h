// Numbers of each row of logits beside its loss, for losses of preferences. Owns: these numbers.
// Never: the loss (chunked_cross_entropy.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::nn {

// logits [R, V] as the output layer gives them; the loss sees them capped at `softcap`, with 0 as
// they are. Memory: of few rows a copy, which no plan knows of.

// Into `means` fp32 [R]: the mean of each row as the loss sees it.
void take_logit_means(const at::Tensor& logits, double softcap, const at::Tensor& means);

// Into `log_squares` fp32 [R]: log(sum p^2) of the probabilities that a row stands for.
void take_log_squares(const at::Tensor& logits, double softcap, const at::Tensor& log_squares);

}  // namespace strata::nn
