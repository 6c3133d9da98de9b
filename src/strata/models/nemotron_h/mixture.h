// What is a layer of Nemotron-H's mixtures: a router by sigmoids, experts without gates, which may
// read and give fewer channels, and an MLP of all tokens. Owns: these and their names. Never: the
// norm before it (layer.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/plain_mlp.h"
#include "strata/models/nemotron_h/config.h"
#include "strata/nn/experts/experts.h"

namespace strata::models {

class NemotronMixture final : public FeedForward {
 public:
  // `path`: of the module, such as "model.layers.0.mixer".
  NemotronMixture(const NemotronHConfig& config, const std::string& path, at::ScalarType storage);

  // Those that are layers in the reference, too, where router and experts are parameters.
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  std::vector<nn::Linear*> nameless_experts() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override {
    return {&*up_matrices_, &*down_matrices_};
  }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;

 private:
  struct Latent {
    nn::Linear in, out;
  };
  nn::Routing route(const nn::Remakable& normed, const nn::ForwardContext& context);

  nn::SigmoidRouterOptions options_;
  nn::Linear router_;
  nn::Parameter correction_;        // a buffer
  std::vector<nn::Linear> layers_;  // up, down of each expert
  nn::Experts experts_;             // which point to them, as the next
  std::optional<nn::ExpertParameter> up_matrices_, down_matrices_;
  PlainMlp shared_;
  std::optional<Latent> latent_;
};

}  // namespace strata::models
