// A layer of Llama's shape whose attention is another: two norms, what mixes tokens after the
// first, Llama's MLP or a mixture of experts after the second. Owns: the norms and the order of
// operations. Never: how tokens are mixed; embedding, head, chain, which are Llama's
// (llama/model.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/blocks.h"

namespace strata::models {

// What stands between a layer's two norms: adds to the residual.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  // As Block's.
  virtual std::vector<nn::Linear*> linears() = 0;
  virtual void append_parameters(std::vector<nn::Parameter*>& list) = 0;
  // residual + mixed(normed).
  virtual at::Tensor add(const nn::Remakable& normed, const at::Tensor& residual,
                         const nn::ForwardContext& context) = 0;
  // As DecoderLayer's.
  virtual bool init_weight(const nn::Parameter& /*parameter*/, at::Tensor /*full*/,
                           at::Generator /*generator*/) const {
    return false;
  }
  // As HasFusedLinears'.
  virtual std::vector<nn::Linear*> untargeted_linears() { return {}; }
  // Its sum is what the block gives: add() is as nn::Linear::forward_add_last().
  void end_block() { ends_block_ = true; }

 protected:
  // residual + scale * layer(x), of its last product; inside a block as
  // nn::Linear::forward_add_once() where there is no factor.
  at::Tensor finish(const nn::Linear& layer, const nn::Remakable& x, const at::Tensor& residual,
                    double scale, const nn::ForwardContext& context) const;

 private:
  bool ends_block_ = false;
};

// Of the layer's modules in the reference: mixer, MLP, norms; norms, MLP, mixer; and so on.
enum class ModuleOrder { kMixerFirst, kMixerLast, kMlpNormsMixer, kMlpMixerNorms };

class MixerLayer final : public DecoderLayer, public HasFusedLinears {
 public:
  // The norms are called as the first two of config.layer_norms. `feed_forward`: in place of the
  // MLP.
  MixerLayer(const LlamaConfig& config, int64_t index, at::ScalarType storage,
             std::unique_ptr<TokenMixer> mixer, std::unique_ptr<FeedForward> feed_forward,
             ModuleOrder order = ModuleOrder::kMixerFirst);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return layer_class_; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  std::vector<nn::Linear*> nameless_experts() override;
  std::vector<nn::Linear*> untargeted_linears() override { return mixer_->untargeted_linears(); }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;
  bool init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override {
    return mixer_->init_weight(parameter, std::move(full), std::move(generator));
  }

 private:
  void append_mlp(std::vector<nn::Parameter*>& list);
  void append_norms(std::vector<nn::Parameter*>& list);

  std::string layer_class_, path_;
  double residual_multiplier_;  // of what the MLP adds
  ModuleOrder order_;
  std::unique_ptr<TokenMixer> mixer_;
  std::optional<Mlp> mlp_;  // without feed_forward_
  std::unique_ptr<FeedForward> feed_forward_;
  nn::RmsNorm input_norm_, mlp_norm_;
};

}  // namespace strata::models
