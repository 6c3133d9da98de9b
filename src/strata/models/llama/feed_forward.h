// What a family puts in the place of Llama's MLP. Owns: the interface. Never: norms and attention,
// which are the layer's.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/base/error.h"
#include "strata/models/fused_linears.h"
#include "strata/nn/batch.h"
#include "strata/nn/linear.h"
#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"

namespace strata::models {

class FeedForward : public HasFusedLinears {
 public:
  // As Block::linears() and Block::parameters().
  virtual std::vector<nn::Linear*> linears() = 0;
  virtual void append_parameters(std::vector<nn::Parameter*>& list) = 0;
  // residual + f(normed), the last of the block: as nn::Linear::forward_add_last().
  virtual at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                              const nn::ForwardContext& context) = 0;
  // f(normed), which the block reads further on. InternalError unless the family has such layers.
  virtual at::Tensor forward(const nn::Remakable& /*normed*/,
                             const nn::ForwardContext& /*context*/) {
    throw InternalError("feed forward: found a norm behind it, expected none in this family");
  }
};

}  // namespace strata::models
