// What stands in the place of the MLP in Llama 4's layers: a router whose scores scale what the
// chosen experts read, experts that are two parameters, an MLP of all tokens; or an MLP alone.
// Owns: these and their names. Never: the rest of the layer (llama/extended_layer.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/mlp.h"
#include "strata/models/llama/model.h"
#include "strata/models/llama4/config.h"
#include "strata/nn/experts/fused_experts.h"

namespace strata::models {

class Llama4Mixture final : public FeedForward {
 public:
  // `path`: of the module, such as "model.layers.0.feed_forward".
  Llama4Mixture(const Llama4Config& config, const std::string& path, at::ScalarType storage);

  // Those of the MLP of all tokens: PEFT cannot adapt the router, a linear layer whose result is
  // none of one.
  std::vector<nn::Linear*> linears() override { return shared_.linears(); }
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  std::vector<nn::ExpertParameter*> expert_parameters() override {
    return {&gate_up_matrices_, &down_matrices_};
  }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  nn::SigmoidRouterOptions options_;
  nn::Parameter gate_up_, down_;
  // As PEFT takes them, with inputs and outputs swapped; point to them, as the next.
  nn::ExpertParameter gate_up_matrices_, down_matrices_;
  nn::FusedExperts experts_;
  nn::Linear router_;
  Mlp shared_;
};

class Llama4Mlp final : public FeedForward {
 public:
  Llama4Mlp(const LlamaConfig& config, const std::string& path, at::ScalarType storage)
      : mlp_(config, path, storage) {}

  std::vector<nn::Linear*> linears() override { return mlp_.linears(); }
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override {
    mlp_.append_parameters(list);
  }
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  Mlp mlp_;
};

MakeDecoderLayer make_llama4_layers(const Llama4Config& config);

}  // namespace strata::models
