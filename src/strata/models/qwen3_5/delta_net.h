// A gated delta network: linear attention in the place of attention. Owns: its projections, the
// convolution's weight, rates and norm. Never: the rule (nn/linear_attention/).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/mixer_layer.h"
#include "strata/models/qwen3_5/config.h"
#include "strata/nn/linear_attention/document_lanes.h"

namespace strata::models {

class DeltaNet final : public TokenMixer {
 public:
  DeltaNet(const Qwen35Config& config, int64_t index, at::ScalarType storage,
           std::shared_ptr<nn::LaneTable> lanes);

  std::vector<nn::Linear*> linears() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;

 private:
  DeltaNet(const Qwen35Config& config, int64_t index, const std::string& path,
           at::ScalarType storage, std::shared_ptr<nn::LaneTable> lanes);
  // q, k and v before the convolution, the gate, logits of beta and the decay's input.
  struct Inputs {
    at::Tensor qkv, z, b, a;
  };
  Inputs project(const nn::Remakable& normed, const nn::ForwardContext& context);
  // [T, value channels].
  at::Tensor mix(const Inputs& in, const nn::ForwardContext& context);

  nn::DeltaShape shape_;
  int64_t index_;
  std::shared_ptr<nn::LaneTable> lanes_;
  nn::Parameter dt_bias_, log_rate_, conv_;
  nn::RmsNorm norm_;
  nn::Linear out_proj_;
  std::optional<nn::Linear> qkv_proj_, z_proj_, b_proj_, a_proj_;
  std::optional<nn::Linear> qkvz_proj_, ba_proj_;  // in their place: key head by key head
};

}  // namespace strata::models
