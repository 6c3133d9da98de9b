// Llama's attention as what mixes tokens in some layers of a family whose others have something
// else there. Owns: its projections and norms of heads, under the names that the family gives
// them. Never: the rest of the layer (mixer_layer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/mixer_layer.h"

namespace strata::models {

struct AttentionNames {
  std::string module = "self_attn";  // in the layer
  std::string output = "o_proj";
  std::string query_norm = {}, key_norm = {};  // of single heads; empty: there are none
};

class AttentionMixer final : public TokenMixer {
 public:
  // `rope` is shared by all layers and must outlive it; config.rotates says whether heads turn.
  AttentionMixer(const LlamaConfig& config, const AttentionNames& names, int64_t index,
                 at::ScalarType storage, nn::Rope& rope);

  std::vector<nn::Linear*> linears() override { return {&q_proj_, &k_proj_, &v_proj_, &o_proj_}; }
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;

 private:
  AttentionMixer(const LlamaConfig& config, const AttentionNames& names, int64_t index,
                 const std::string& path, at::ScalarType storage, nn::Rope& rope);

  LlamaConfig config_;
  int64_t index_;
  nn::Rope& rope_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<nn::RmsNorm> q_norm_, k_norm_;
};

}  // namespace strata::models
