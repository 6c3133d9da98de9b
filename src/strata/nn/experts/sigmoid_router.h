// The choice of experts for each token by sigmoids (DeepSeek-V3, as GLM-4.5 has it): a correction,
// which is no weight, decides with the scores who is chosen, the scores alone by how much. Owns:
// the autograd function of that choice. Never: the product that makes the logits (nn/linear.h),
// what experts do (nn/experts/experts.h), the values of the correction.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/experts/expert_groups.h"
#include "strata/nn/experts/router.h"

namespace strata::nn {

struct SigmoidRouterOptions {
  int64_t experts_per_token;
  bool normalizes;           // the weights of a token sum to `scale`
  double scale = 1.0;        // of all weights
  ExpertGroups groups = {};  // a token's are those whose best two have the largest sums
  double least_sum = 1e-20;  // is added to the sum by which scores are divided
  // Logits choose: sigmoids of large ones are all 1 (Llama 4). Without correction and groups.
  bool chooses_by_logits = false;
};

// Routes by logits [T, experts], in whose type scores and weights are computed; `correction` fp32
// [experts], undefined: there is none. The experts of a token come in the order of what chose them.
// Nothing balances these: the correction did, as the model was made. Requires: groups of two or
// more, of which the chosen hold experts_per_token or more. Memory: keeps the scores of the chosen,
// [T, k].
Routing route_by_sigmoid(const at::Tensor& logits, const at::Tensor& correction,
                         const SigmoidRouterOptions& options);

}  // namespace strata::nn
