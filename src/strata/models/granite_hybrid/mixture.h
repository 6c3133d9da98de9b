// What stands behind a layer's second norm in Granite 4.0 with experts: a mixture beside an MLP of
// all tokens, their sum with a factor. Owns: router, experts, the MLP and their names. Never: the
// rest of the layer (llama/mixer_layer.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/granite_hybrid/config.h"
#include "strata/models/llama/gated_feed_forward.h"
#include "strata/nn/experts/fused_experts.h"

namespace strata::models {

class GraniteHybridMixture final : public FeedForward {
 public:
  // `path`: of the layer.
  GraniteHybridMixture(const GraniteHybridConfig& config, const std::string& path,
                       at::ScalarType storage);

  // Of the MLP: in the reference router and experts are parameters, and so they are in PEFT's eyes.
  std::vector<nn::Linear*> linears() override { return shared_.linears(); }
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {{&router_}}; }
  std::vector<nn::ExpertParameter*> expert_parameters() override {
    return {&gate_up_matrices_, &down_matrices_};
  }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  nn::RouterOptions options_;
  double multiplier_;
  nn::Linear router_;
  nn::Parameter gate_up_, down_;
  nn::ExpertParameter gate_up_matrices_, down_matrices_;  // point to them, as the next
  nn::FusedExperts experts_;
  GatedFeedForward shared_;
};

// The MLP of all tokens. `multiplier`: of what it adds by itself.
GatedFeedForwardOptions granite_mlp(const GraniteHybridConfig& config, const std::string& layer,
                                    double multiplier, at::ScalarType storage);

}  // namespace strata::models
