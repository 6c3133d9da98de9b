// A layer of Nemotron-H: a norm, then one module, which mixes tokens or is an MLP or a mixture.
// Owns: the norm and what is after it. Never: which layer has what (layers.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/llama/mixer_layer.h"

namespace strata::models {

class NemotronLayer final : public DecoderLayer, public HasFusedLinears {
 public:
  // One of `mixer` and `feed_forward` is null.
  NemotronLayer(const LlamaConfig& config, int64_t index, at::ScalarType storage,
                std::unique_ptr<TokenMixer> mixer, std::unique_ptr<FeedForward> feed_forward);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return layer_class_; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  std::vector<nn::Linear*> nameless_experts() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  std::vector<nn::Linear*> untargeted_linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;

 private:
  std::string layer_class_, path_;
  nn::RmsNorm norm_;
  std::unique_ptr<TokenMixer> mixer_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace strata::models
