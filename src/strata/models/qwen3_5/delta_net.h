// A gated delta network: linear attention in the place of attention. Owns: its projections, the
// convolution's weight, rates and norm. Never: the rule (nn/linear_attention/).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/models/qwen3_5/blocks.h"

namespace strata::models {

class DeltaNet final : public TokenMixer {
 public:
  DeltaNet(const Qwen35Config& config, int64_t index, at::ScalarType storage,
           std::shared_ptr<nn::LaneTable> lanes);

  std::vector<nn::Linear*> linears() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;

 private:
  DeltaNet(const Qwen35Config& config, int64_t index, const std::string& path,
           at::ScalarType storage, std::shared_ptr<nn::LaneTable> lanes);
  // [T, value channels] of q, k, v before the convolution, logits of beta and the decay's input.
  at::Tensor mix(const at::Tensor& qkv, const at::Tensor& b, const at::Tensor& a,
                 const nn::ForwardContext& context);

  nn::DeltaShape shape_;
  int64_t index_;
  std::shared_ptr<nn::LaneTable> lanes_;
  nn::Parameter dt_bias_, log_rate_, conv_;
  nn::RmsNorm norm_;
  nn::Linear out_proj_, qkv_proj_, z_proj_, b_proj_, a_proj_;
};

}  // namespace strata::models
