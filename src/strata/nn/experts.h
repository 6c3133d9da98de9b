// A mixture of experts: gated MLPs of which each token passes the few that a router chose, their
// results weighted and added. Owns: the order of rows and the autograd function over all experts.
// Never: the choice (nn/router.h), which weights there are, or what is beside the experts.
//
// T tokens, k experts for each: S = T * k rows, those of one expert one after the other. All memory
// depends on S alone, whatever the router chooses. Every sum is in a fixed order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/linear.h"
#include "strata/nn/remakable.h"
#include "strata/nn/router.h"

namespace strata::nn {

// down(silu(gate(x)) * up(x)). Of branches those of LoRA without dropout and bias are computed.
struct Expert {
  Linear* gate;  // [hidden] -> [intermediate]
  Linear* up;
  Linear* down;
};

// Which row belongs to which token.
struct ExpertRows {
  at::Tensor token;            // int64 [S], the token of each row
  at::Tensor place;            // int64 [k * T], the row of each token's first expert, second, ...
  std::vector<int64_t> begin;  // [experts + 1], expert e has the rows begin[e] .. begin[e + 1]

  int64_t count(size_t expert) const { return begin[expert + 1] - begin[expert]; }
};

// `chosen` int64 [T, k]: by counting, on the host. Elsewhere as sort_on_device(); without data
// (device meta) all experts get equally many rows.
ExpertRows sort_by_expert(const at::Tensor& chosen, int64_t num_experts);
// The same by a stable sort. Waits for the device once.
ExpertRows sort_on_device(const at::Tensor& chosen, int64_t num_experts);
// Calls `visit` for every expert, in any order. `at_once`: without autograd, on several threads
// where each of them gets some, for products of few rows are too little work to share.
void for_each_expert(const ExpertRows& rows, bool at_once,
                     const std::function<void(size_t)>& visit);

// residual + the weighted sum of each token's experts, for x [T, hidden]. Where
// context.wants_output is false the result is of the right shape alone, as
// Linear::forward_add_last(). Experts without rows get gradients of zero.
// Memory: keeps 2 * S * intermediate elements, and x unless nothing trains on it.
at::Tensor add_experts_last(const std::vector<Expert>& experts, const Remakable& x,
                            const at::Tensor& residual, const Routing& routing,
                            const ForwardContext& context);

}  // namespace strata::nn
