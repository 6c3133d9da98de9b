// The choice of experts for each token (Shazeer et al. 2017): softmax over all, the best k of them.
// Owns: the autograd function of that choice. Never: the product that makes the logits
// (nn/linear.h), what experts do (nn/experts/experts.h), the loss that balances them
// (nn/experts/expert_balance.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/experts/expert_groups.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

struct RouterOptions {
  int64_t experts_per_token;
  bool normalizes;           // the chosen probabilities sum to 1
  bool rounds = true;        // weights have the precision of the logits
  double scale = 1.0;        // of all weights
  ExpertGroups groups = {};  // a token's are those with the most probable experts
};

// T tokens, k experts for each.
struct Routing {
  at::Tensor weights;  // fp32 [T, k], largest first; the router's gradient goes through it
  at::Tensor experts;  // int64 [T, k]
};

// Routes by logits [T, experts], with a softmax in fp32. Adds to context.balance, unless the block
// runs again.
// Memory: keeps the probabilities, fp32 [T, experts].
Routing route(const at::Tensor& logits, const RouterOptions& options,
              const ForwardContext& context);

// The same with weights times the number of each expert in `scales` [experts]. Memory: keeps the
// weights before; backward takes fp32 [T, experts] where `scales` trains.
Routing scaled_by_expert(const Routing& routing, Parameter& scales);

}  // namespace strata::nn
