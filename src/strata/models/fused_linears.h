// Linear layers that are none in the reference, which holds them as parameters: the router of a
// mixture, gate and up of all its experts, down of all; and the latter as such parameters, whatever
// holds them here. Owns: the interface of blocks that have some. Never: what follows from it
// (adapters/expert_targets.h, adapters/target_parameters.h).
#pragma once

#include <vector>

#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/linear.h"

namespace strata::models {

class HasFusedLinears {
 public:
  virtual ~HasFusedLinears() = default;
  // The layers of Block::linears() that are parts of one parameter, a group per parameter.
  virtual std::vector<std::vector<nn::Linear*>> fused_linears() = 0;
  // The matrices of all experts that may have a branch together, in the reference's order.
  virtual std::vector<nn::ExpertParameter*> expert_parameters() { return {}; }
  // Layers of experts that the reference's names do not reach, which Block::linears() has not.
  virtual std::vector<nn::Linear*> nameless_experts() { return {}; }
  // Layers to which PEFT gives no low-rank branch in the model's family, and raises an error.
  virtual std::vector<nn::Linear*> untargeted_linears() { return {}; }
};

}  // namespace strata::models
