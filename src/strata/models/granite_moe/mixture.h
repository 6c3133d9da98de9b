// What stands in the place of the MLP in Granite's mixtures, Granite 4.0's among them: a router,
// experts that are two parameters, and an MLP of all tokens or none; their sum has a factor. Owns:
// these and their names. Never: the rest of the layer (llama/extended_layer.h,
// llama/mixer_layer.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/granite_moe/config.h"
#include "strata/models/llama/gated_feed_forward.h"
#include "strata/nn/experts/fused_experts.h"

namespace strata::models {

struct GraniteMixtureOptions {
  std::string layer;  // its path
  int64_t hidden_size;
  GraniteExperts experts;
  std::optional<int64_t> shared_intermediate_size = {};  // of the MLP of all tokens
  double multiplier = 1.0;                               // of what it adds
  at::ScalarType storage;
};

class GraniteMixture final : public FeedForward {
 public:
  // The names of experts and router are those of transformers' model; files have others
  // (hf/weight_names.h).
  explicit GraniteMixture(const GraniteMixtureOptions& options);

  // Those of the MLP: in the reference router and experts are parameters.
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  std::vector<nn::ExpertParameter*> expert_parameters() override {
    return {&gate_up_matrices_, &down_matrices_};
  }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  nn::RouterOptions router_options_;
  double multiplier_;
  nn::Linear router_;
  nn::Parameter gate_up_, down_;
  nn::ExpertParameter gate_up_matrices_, down_matrices_;  // point to them, as the next
  nn::FusedExperts experts_;
  std::optional<GatedFeedForward> shared_;
};

// The MLP of all tokens by itself: its result has no factor.
GatedFeedForwardOptions granite_mlp(const std::string& layer, int64_t hidden_size,
                                    int64_t intermediate_size, at::ScalarType storage);

}  // namespace strata::models
