// What mixes tokens in most layers of LFM2: a short convolution between two gates, which one
// product gives beside its input. Owns: its products and the convolution's weights. Never: the
// convolution (nn/linear_attention/causal_conv.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/lfm2/config.h"
#include "strata/models/llama/mixer_layer.h"

namespace strata::models {

class ShortConv final : public TokenMixer {
 public:
  ShortConv(const Lfm2Config& config, int64_t index, at::ScalarType storage);

  std::vector<nn::Linear*> linears() override { return {&in_proj_, &out_proj_}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;

 private:
  ShortConv(const Lfm2Config& config, int64_t index, const std::string& path,
            at::ScalarType storage);
  nn::Parameter* bias() { return bias_ ? &*bias_ : nullptr; }

  int64_t index_;
  nn::Parameter weight_;
  std::optional<nn::Parameter> bias_;
  nn::Linear in_proj_, out_proj_;
};

}  // namespace strata::models
