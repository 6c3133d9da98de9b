// The experts of gpt-oss, of which all matrices of a kind are one parameter: gated MLPs with biases
// and a gate that is clamped. Owns: the autograd function over all experts. Never: the choice
// (nn/experts/router.h), the order of rows (nn/experts/expert_rows.h), experts of layers of their
// own (nn/experts/experts.h). Source: transformers GptOssExperts.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/experts/router.h"
#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::nn {

// E experts.
struct FusedExperts {
  // Both matrices may rest in codes.
  Parameter* gate_up;       // [E, hidden, 2 * intermediate], gate and up of a channel side by side
  Parameter* gate_up_bias;  // [E, 2 * intermediate]
  Parameter* down;          // [E, intermediate, hidden]
  Parameter* down_bias;     // [E, hidden]
  ops::ClampedGate gate;
  ExpertBranch* gate_up_branch = nullptr;  // of gate_up and down; null: there is none
  ExpertBranch* down_branch = nullptr;

  int64_t num_experts() const { return gate_up->shape()[0]; }
};

// As add_experts_last(). Memory: keeps 2 * S * intermediate elements, and x if gate_up or its
// branch trains; of codes one expert's matrix is decoded at a time.
at::Tensor add_fused_experts_last(const FusedExperts& experts, const Remakable& x,
                                  const at::Tensor& residual, const Routing& routing,
                                  const ForwardContext& context);

}  // namespace strata::nn
