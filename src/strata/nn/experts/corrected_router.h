// The choice of experts for each token by a softmax and a correction (ERNIE 4.5): the correction,
// which is no weight, decides with the probabilities who is chosen, the probabilities alone by how
// much. Owns: the autograd function of that choice. Never: the product that makes the logits
// (nn/linear.h), the loss that balances (nn/experts/router_balance.h), the values of the
// correction. Source: transformers Ernie4_5_MoeTopKRouter.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/router.h"

namespace strata::nn {

struct CorrectedRouterOptions {
  int64_t experts_per_token;
  double least_sum;  // by which the weights of a token are divided at least
};

// Routes by fp32 logits [T, experts]; `correction` fp32 [experts]. Weights are rounded to
// `type`. Memory: keeps the probabilities, fp32 [T, experts].
Routing route_by_corrected_softmax(const at::Tensor& logits, const at::Tensor& correction,
                                   const CorrectedRouterOptions& options, at::ScalarType type);

}  // namespace strata::nn
