// The MLP of Llama's layer: gate and up, a gated activation, down. Owns: its layers, of which gate
// and up may be one. Never: norms, what its result joins (blocks.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/config.h"
#include "strata/nn/batch.h"
#include "strata/nn/linear.h"
#include "strata/nn/parameter.h"
#include "strata/nn/remakable.h"

namespace strata::models {

class Mlp {
 public:
  // `path`: of the module, such as "model.layers.0.mlp".
  Mlp(const LlamaConfig& config, const std::string& path, at::ScalarType storage);

  // As Block::linears() and Block::parameters().
  std::vector<nn::Linear*> linears();
  void append_parameters(std::vector<nn::Parameter*>& list);

  // [T, intermediate_size], what the last product reads.
  nn::Remakable gated(const nn::Remakable& normed, const nn::ForwardContext& context);
  nn::Linear& down_proj() { return down_proj_; }

 private:
  ops::GateKind gate_;
  std::optional<nn::Linear> gate_up_proj_, gate_proj_, up_proj_;  // the first, or both others
  nn::Linear down_proj_;
};

}  // namespace strata::models
