// The MLP of a layer as a mixture of experts. Owns: router, experts, the expert of all tokens, and
// their names. Never: the rest of the layer, which is Llama's (llama/blocks.h).
#pragma once

#include <memory>
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
  std::vector<nn::Linear*> nameless_experts() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add_last(const nn::Remakable& normed, const at::Tensor& residual,
                      const nn::ForwardContext& context) override;
  at::Tensor forward(const nn::Remakable& normed, const nn::ForwardContext& context) override;

 private:
  // An expert that all tokens pass, times sigmoid of a product with one row where there is one.
  struct Shared {
    nn::Linear gate, up, down;
    std::optional<nn::Linear> scale;

    std::vector<nn::Linear*> linears();
  };
  void name_matrices(const std::string& path);
  void append_shared(std::vector<nn::Parameter*>& list);
  at::Tensor add_shared(const nn::Remakable& normed, const at::Tensor& residual,
                        const nn::ForwardContext& context);
  // base + the weighted sum of each token's experts; without a base the sum alone.
  at::Tensor add_experts(const nn::Remakable& normed, const std::optional<at::Tensor>& base,
                         const nn::Routing& routing, const nn::ForwardContext& context);
  nn::Routing route(const nn::Remakable& normed, const nn::ForwardContext& context);
  nn::Routing choose(const at::Tensor& logits, at::ScalarType type,
                     const nn::ForwardContext& context);

  nn::RouterOptions options_;
  // One of these may be in their place.
  std::optional<nn::SigmoidRouterOptions> sigmoid_options_;
  std::optional<nn::CorrectedRouterOptions> corrected_options_;
  bool balances_logits_;  // with one of these
  bool is_wide_;          // the router's products are taken in fp32
  bool narrow_scores_;    // what these make of them is of the compute type
  bool router_comes_first_, shared_comes_second_, router_is_linear_, is_no_target_;
  nn::Linear router_;
  std::optional<nn::Parameter> correction_;  // with one of these: a buffer
  std::vector<nn::Linear> layers_;           // gate, up, down of each expert
  nn::Experts experts_;
  // Where no name of a layer means them; these point to layers_, too.
  std::optional<nn::ExpertParameter> gate_up_matrices_, down_matrices_;
  std::optional<Shared> shared_;
};

// The mixture of a layer; null where it has none.
std::unique_ptr<FeedForward> make_mixture(const MixtureConfig& config, int64_t index,
                                          at::ScalarType storage);

// Llama's layer with a mixture where the configuration says so.
MakeDecoderLayer make_mixture_layers(const MixtureConfig& config);

}  // namespace strata::models
