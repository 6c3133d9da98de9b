// The blocks of Llama and of the families that share them: embedding, decoder layer, head. Owns:
// their layers and the order of operations. Never: gathering, checkpointing, the chain
// (llama/model.h).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/embedding_scale.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/feed_forward.h"
#include "strata/models/llama/mlp.h"
#include "strata/models/model.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/embedding.h"
#include "strata/nn/linear.h"
#include "strata/nn/norm.h"

namespace strata::models {

class LlamaEmbedding final : public Block, public HasRowScale {
 public:
  LlamaEmbedding(const LlamaConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "Embedding"; }
  std::string path() const override { return embedding_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  nn::Embedding* embedding() override { return &embedding_; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return embedding_.shared_weight(); }
  double scale() const override { return scale_; }
  // Prompt tuning: the rows of virtual tokens.
  void set_prompt(std::shared_ptr<nn::Parameter> prompt) { prompt_ = std::move(prompt); }

 private:
  nn::Embedding embedding_;
  double scale_;
  double row_scale_;
  std::optional<double> norm_eps_;  // with unit_norms
  std::shared_ptr<nn::Parameter> prompt_;
};

// A layer of the chain, with what prefix tuning puts before its keys and values.
class DecoderLayer : public Block {
 public:
  // One parameter that all layers share, or the result of a projection, whose weights are the first
  // layer's.
  void set_prefix(std::shared_ptr<nn::Parameter> prefix,
                  std::shared_ptr<nn::PrefixProjection> projection) {
    prefix_ = std::move(prefix);
    projection_ = std::move(projection);
  }
  // Fills a weight of the layer that begins otherwise than other layers' do; false: it does not.
  virtual bool init_weight(const nn::Parameter& /*parameter*/, at::Tensor /*full*/,
                           at::Generator /*generator*/) const {
    return false;
  }

 protected:
  nn::Parameter* prefix() const { return prefix_.get(); }
  nn::PrefixProjection* projection() const { return projection_.get(); }
  void append_prefix(std::vector<nn::Parameter*>& list, int64_t index) const;

 private:
  std::shared_ptr<nn::Parameter> prefix_;
  std::shared_ptr<nn::PrefixProjection> projection_;
};

class LlamaDecoderLayer final : public DecoderLayer, public HasFusedLinears {
 public:
  // `rope` is shared by all layers and must outlive them. `feed_forward`: in place of the MLP.
  LlamaDecoderLayer(const LlamaConfig& config, int64_t index, at::ScalarType storage,
                    nn::Rope& rope, std::unique_ptr<FeedForward> feed_forward = nullptr);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<std::vector<nn::Linear*>> fused_linears() override;
  std::vector<nn::ExpertParameter*> expert_parameters() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // x + attention(norm(x)); x + mlp(norm(x)), where the second terms may be scaled.
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);
  // residual + y, where that may be scaled.
  at::Tensor add_normed(const at::Tensor& residual, const at::Tensor& y) const;
  void append_norms(std::vector<nn::Parameter*>& list);
  std::optional<nn::RmsNorm>& norm(NormPlace place) { return norms_[static_cast<size_t>(place)]; }

  LlamaConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  std::optional<nn::Parameter> sinks_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<nn::RmsNorm> q_norm_, k_norm_;  // with head_norms or row_norms
  std::optional<nn::Linear> gate_;              // with attention_gate
  std::optional<Mlp> mlp_;                      // without feed_forward_
  std::unique_ptr<FeedForward> feed_forward_;
  std::array<std::optional<nn::RmsNorm>, 4> norms_;  // by NormPlace
};

// Final norm, output layer and loss.
class LlamaHead final : public Block {
 public:
  // `tied`: the embedding's weight, or null for a weight of its own.
  LlamaHead(const LlamaConfig& config, at::ScalarType storage, std::shared_ptr<nn::Parameter> tied);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return lm_head_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&lm_head_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, vocab].
  at::Tensor logits(const at::Tensor& x);
  nn::Linear& lm_head() { return lm_head_; }

 private:
  // The final norm, scaled so that the logits are.
  at::Tensor normed(const at::Tensor& x);

  std::optional<nn::RmsNorm> norm_;  // without unit_norms
  double norm_eps_;
  nn::Linear lm_head_;  // of a model that looks at whole documents "score"
  double logit_scale_;
  double softcap_;
};

}  // namespace strata::models
