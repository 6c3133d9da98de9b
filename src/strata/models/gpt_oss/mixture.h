// The MLP of gpt-oss' layers: a router with a bias and experts that are four parameters. Owns:
// these and their names. Never: the rest of the layer, which is Llama's (llama/blocks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/models/gpt_oss/config.h"
#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/model.h"
#include "strata/nn/experts/fused_experts.h"

namespace strata::models {

class GptOssMixture final : public FeedForward {
 public:
  // `path`: of the module, such as "model.layers.0.mlp".
  GptOssMixture(const GptOssConfig& config, const std::string& path, at::ScalarType storage);

  // None: in the reference router and experts are parameters, and so they are in PEFT's eyes.
  std::vector<nn::Linear*> linears() override { return {}; }
  std::vector<std::vector<nn::Linear*>> fused_linears() override { return {}; }
  std::vector<nn::ExpertParameter*> expert_parameters() override {
    return {&gate_up_matrices_, &down_matrices_};
  }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  nn::RouterOptions options_;
  nn::Linear router_;
  nn::Parameter gate_up_, gate_up_bias_, down_, down_bias_;
  nn::ExpertParameter gate_up_matrices_, down_matrices_;  // point to them, as the next
  nn::FusedExperts experts_;
};

MakeDecoderLayer make_gpt_oss_layers(const GptOssConfig& config);

}  // namespace strata::models
