// Attention whose output passes a gate, which the projection of the queries gives beside them.
// Owns: its projections and norms. Never: the rest of the layer (blocks.h).
#pragma once

#include <cstdint>
#include <vector>

#include "strata/models/llama/mixer_layer.h"

namespace strata::models {

class GatedAttention final : public TokenMixer {
 public:
  // `rope` is shared by all layers and must outlive it.
  GatedAttention(const LlamaConfig& config, int64_t index, at::ScalarType storage, nn::Rope& rope);

  std::vector<nn::Linear*> linears() override { return {&q_proj_, &k_proj_, &v_proj_, &o_proj_}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;

 private:
  GatedAttention(const LlamaConfig& config, int64_t index, const std::string& path,
                 at::ScalarType storage, nn::Rope& rope);
  at::Tensor normed_heads(nn::RmsNorm& norm, const at::Tensor& x) const;

  LlamaConfig config_;
  int64_t index_;
  nn::Rope& rope_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  nn::RmsNorm q_norm_, k_norm_;
};

}  // namespace strata::models
