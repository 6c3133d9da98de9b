// What stands in the place of the MLP in Granite's mixtures: a router, experts that are two
// parameters, an MLP of all tokens; what they add is scaled. Owns: these and their names. Never:
// the rest of the layer (llama/extended_layer.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/granite_moe/config.h"
#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/model.h"
#include "strata/nn/experts/fused_experts.h"

namespace strata::models {

class GraniteMixture final : public FeedForward {
 public:
  // `path`: of the layer. The names of experts and router are those of transformers' model; files
  // have others (hf/weight_names.h).
  GraniteMixture(const GraniteMoeConfig& config, const std::string& path, at::ScalarType storage);

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
  struct Shared {
    nn::Linear input, output;  // gate and up are halves of the first
  };
  at::Tensor add_shared(const nn::Remakable& normed, const at::Tensor& residual,
                        const nn::ForwardContext& context);

  double multiplier_;
  nn::RouterOptions options_;  // whose scale is the multiplier
  nn::Linear router_;
  nn::Parameter gate_up_, down_;
  nn::ExpertParameter gate_up_matrices_, down_matrices_;  // point to them, as the next
  nn::FusedExperts experts_;
  std::optional<Shared> shared_;
};

MakeDecoderLayer make_granite_moe_layers(const GraniteMoeConfig& config);

}  // namespace strata::models
