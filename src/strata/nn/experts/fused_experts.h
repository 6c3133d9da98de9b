// Experts of which all matrices of a kind are one parameter: gated MLPs, of gpt-oss with biases and
// a gate that is clamped. Owns: the autograd function over all experts. Never: the choice
// (nn/experts/router.h), the order of rows (nn/experts/expert_rows.h), experts of layers of their
// own (nn/experts/experts.h). Source: transformers GptOssExperts, Gemma4TextExperts,
// Llama4TextMoe.
#pragma once

#include <optional>
#include <variant>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/experts/expert_rows.h"
#include "strata/nn/experts/router.h"
#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"
#include "strata/ops/kernel_arguments.h"

namespace strata::nn {

// The matrices of E experts.
struct FusedMatrices {
  Parameter* weight;               // [E, in, out], which may be stored as codes
  Parameter* bias = nullptr;       // [E, out]; null: there is none
  bool rows_are_outputs = false;   // `weight` is [E, out, in]
  ExpertBranch* branch = nullptr;  // null: there is none
  bool branch_is_swapped = false;  // nn/experts/swapped_branch.h

  int64_t in_features() const { return weight->shape()[rows_are_outputs ? 2 : 1]; }
  int64_t out_features() const { return weight->shape()[rows_are_outputs ? 1 : 2]; }
};

// Clamped: gate and up of a channel lie side by side; else as halves, gate first.
using FusedGate = std::variant<ops::ClampedGate, ops::GateKind>;

struct FusedExperts {
  FusedMatrices gate_up;  // [hidden] -> [2 * intermediate]
  FusedMatrices down;
  FusedGate gate;
  // A row's weight is a factor of what its expert reads, not of what it gives. Without biases.
  bool scales_inputs = false;

  int64_t num_experts() const { return gate_up.weight->shape()[0]; }
};

// As add_experts_last(); without a residual the sum alone. Memory: keeps 2 * S * intermediate
// elements, and x if gate_up or its branch trains or inputs are scaled; of codes what
// grouped_product() decodes at once, or one expert's matrix at a time.
at::Tensor add_fused_experts_last(const FusedExperts& experts, const Remakable& x,
                                  const std::optional<at::Tensor>& residual, const Routing& routing,
                                  const ForwardContext& context);

}  // namespace strata::nn
