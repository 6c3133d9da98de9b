// The MLP of a layer as a mixture of experts. Owns: router, experts, the expert of all tokens, and
// their names. Never: the rest of the layer, which is Llama's (llama/blocks.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/model.h"
#include "strata/models/moe/config.h"
#include "strata/nn/experts/experts.h"

namespace strata::models {

class Mixture final : public FeedForward {
 public:
  // `path`: of the module, such as "model.layers.0.mlp".
  Mixture(const MixtureConfig& config, const std::string& path, at::ScalarType storage);

  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  // An expert that all tokens pass, times sigmoid of a product with one row where there is one.
  struct Shared {
    nn::Linear gate, up, down;
    std::optional<nn::Linear> scale;

    std::vector<nn::Linear*> linears();
  };
  at::Tensor add_shared(const nn::Remakable& normed, const at::Tensor& residual,
                        const nn::ForwardContext& context);
  nn::Routing route(const nn::Remakable& normed, const nn::ForwardContext& context);

  nn::RouterOptions options_;
  std::optional<nn::SigmoidRouterOptions> sigmoid_options_;  // in their place
  bool is_wide_;  // the router's products are taken in fp32
  bool router_comes_first_, is_no_target_;
  nn::Linear router_;
  std::optional<nn::Parameter> correction_;  // of sigmoid_options_, where there is one: a buffer
  std::vector<nn::Linear> layers_;           // gate, up, down of each expert
  std::vector<nn::Expert> experts_;
  std::optional<Shared> shared_;
};

// Llama's layer with a mixture where the configuration says so.
MakeDecoderLayer make_mixture_layers(const MixtureConfig& config);

}  // namespace strata::models
