// Mamba-2 as what mixes tokens in a layer: a short convolution, a state space, a norm after a
// gate. Owns: its products, weights and norm. Never: the rule (nn/linear_attention/state_space.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/mixer_layer.h"
#include "strata/models/mamba/config.h"
#include "strata/nn/linear_attention/document_lanes.h"
#include "strata/nn/linear_attention/gated_norm.h"

namespace strata::models {

class MambaMixer final : public TokenMixer {
 public:
  // `lanes` are shared by the layers of a model.
  MambaMixer(const MambaConfig& config, int64_t index, at::ScalarType storage,
             std::shared_ptr<nn::LaneTable> lanes);

  std::vector<nn::Linear*> linears() override { return {&in_proj_, &out_proj_}; }
  std::vector<nn::Linear*> untargeted_linears() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;

 private:
  MambaMixer(const MambaConfig& config, int64_t index, const std::string& path,
             at::ScalarType storage, std::shared_ptr<nn::LaneTable> lanes);
  bool is_out_weight(const nn::Parameter& parameter) const;
  // What the first product gives.
  at::Tensor project(const nn::Remakable& normed, const nn::ForwardContext& context) const;
  // [T, channels], before norm and gate.
  at::Tensor mix(const at::Tensor& xbc, const at::Tensor& steps, const nn::ForwardContext& context);

  MambaConfig config_;
  int64_t index_;
  std::shared_ptr<nn::LaneTable> lanes_;
  nn::Parameter step_bias_, log_rate_, skip_, conv_;
  std::optional<nn::Parameter> conv_bias_;
  nn::Linear in_proj_;
  std::optional<nn::GatedNorm> norm_;
  nn::Linear out_proj_;
};

}  // namespace strata::models
