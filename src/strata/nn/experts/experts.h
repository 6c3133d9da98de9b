// A mixture of experts: MLPs, with a gate or without, of which each token passes the few that a
// router chose, their results weighted and added. Owns: the autograd function over all experts.
// Never: the choice (nn/experts/router.h), the order of rows (nn/experts/expert_rows.h), which
// weights there are, or what is beside the experts.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/experts/router.h"
#include "strata/nn/linear.h"
#include "strata/nn/remakable.h"

namespace strata::nn {

// down(silu(gate(x)) * up(x)), or down of the square of relu(up(x)). Of branches those of LoRA
// without dropout and bias are computed.
struct Expert {
  Linear* gate;  // [hidden] -> [intermediate]; null, of all experts: there are none
  Linear* up;
  Linear* down;
};

// All experts of a mixture, and branches of all of them at once.
struct Experts {
  std::vector<Expert> each;
  ExpertBranch* in_branch = nullptr;  // of gate and up as one matrix, gate first, or of up alone
  ExpertBranch* down_branch = nullptr;
};

// residual + the weighted sum of each token's experts, for x [T, hidden]; without a residual the
// sum alone. Where context.pass.wants_output is false the result is of the right shape alone, as
// Linear::forward_add_last(). Experts without rows get gradients of zero.
// Memory: keeps 2 * S * intermediate elements (without gates half of them), and x unless nothing
// trains on it.
at::Tensor add_experts_last(const Experts& experts, const Remakable& x,
                            const std::optional<at::Tensor>& residual, const Routing& routing,
                            const ForwardContext& context);

}  // namespace strata::nn
