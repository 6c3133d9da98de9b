// Linear layers that are none in the reference, which holds them as parameters: the router of a
// mixture, gate and up of all its experts, down of all. Owns: the interface of blocks that have
// some. Never: what follows from it (adapters/expert_targets.h).
#pragma once

#include <vector>

#include "strata/nn/linear.h"

namespace strata::models {

class HasFusedLinears {
 public:
  virtual ~HasFusedLinears() = default;
  // Those of Block::linears() that are parts of parameters, a group each.
  virtual std::vector<std::vector<nn::Linear*>> fused_linears() = 0;
};

}  // namespace strata::models
