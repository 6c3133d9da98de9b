// Llama's MLP under the names that a family gives its layers. Owns: these layers, of which gate and
// up may be one, and the factors of gate and of what it adds. Never: norms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/feed_forward.h"

namespace strata::models {

struct GatedFeedForwardOptions {
  std::string path;            // of the module
  std::string gate, up, down;  // in it; no `up`: `gate` has both as halves
  int64_t hidden_size, intermediate_size;
  bool bias = false;
  double gate_multiplier = 1.0;  // of what the activation reads, where `up` is one
  double multiplier = 1.0;       // of what it adds
  at::ScalarType storage;
};

class GatedFeedForward final : public FeedForward {
 public:
  explicit GatedFeedForward(const GatedFeedForwardOptions& options);

  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;
  // Of a layer that goes on with it: without the factor and the residual, of the right shape alone
  // where the block's result is not wanted.
  at::Tensor forward_last(const nn::Remakable& normed, const nn::ForwardContext& context);

 private:
  nn::Remakable gated(const nn::Remakable& normed, const nn::ForwardContext& context);

  double gate_multiplier_, multiplier_;
  nn::Linear gate_;
  std::optional<nn::Linear> up_;
  nn::Linear down_;
};

}  // namespace strata::models
