// Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are a product of a
// few channels a token, beside channels with positions that all heads share; queries may be made in
// the same way. Owns: its projections and norms. Never: the rest of the layer
// (llama/mixer_layer.h), how keys are put together (nn/attention/latent_keys.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/deepseek/config.h"
#include "strata/models/llama/mixer_layer.h"
#include "strata/nn/attention/attention.h"

namespace strata::models {

class LatentAttention final : public TokenMixer {
 public:
  // `rope` is shared by all layers and must outlive it.
  LatentAttention(const LlamaConfig& llama, const LatentAttentionConfig& config, int64_t index,
                  at::ScalarType storage, nn::Rope& rope);

  std::vector<nn::Linear*> linears() override;
  void append_parameters(std::vector<nn::Parameter*>& list) override;
  at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                 const nn::ForwardContext& context) override;

 private:
  // Queries made of fewer channels.
  struct LatentQueries {
    LatentQueries(const LlamaConfig& llama, const LatentAttentionConfig& config,
                  const std::string& path, at::ScalarType storage);

    nn::Linear down;
    nn::RmsNorm norm;
    nn::Linear up;
  };
  LatentAttention(const LlamaConfig& llama, const LatentAttentionConfig& config, int64_t index,
                  const std::string& path, at::ScalarType storage, nn::Rope& rope);
  // [T, heads * key_dim], fresh.
  at::Tensor queries(const at::Tensor& first, const nn::ForwardContext& context);
  nn::LatentKeys keys(const at::Tensor& latents, const nn::ForwardContext& context);
  nn::AttentionOptions options() const;

  LlamaConfig llama_;
  LatentAttentionConfig config_;
  int64_t index_;
  nn::Rope& rope_;
  std::optional<nn::Linear> q_proj_;             // without latent_queries_
  std::optional<LatentQueries> latent_queries_;  // with config_.query_rank
  nn::Linear kv_down_;                           // also gives the channels that heads share
  nn::RmsNorm kv_norm_;
  nn::Linear kv_up_, o_proj_;
};

}  // namespace strata::models
