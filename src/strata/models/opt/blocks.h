// The blocks of OPT and XGLM: embeddings of tokens and positions, layer. Owns: their layers and the
// order of operations. Never: the head (decoder_head.h), gathering, checkpointing, the chain
// (opt/model.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/embedding_scale.h"
#include "strata/models/model.h"
#include "strata/models/opt/config.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class OptEmbedding final : public Block, public HasRowScale {
 public:
  OptEmbedding(const OptConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "Embedding"; }
  std::string path() const override { return tokens_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  nn::Embedding* embedding() override { return &tokens_; }
  // ConfigError for a document of more tokens than there are learned positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return tokens_.shared_weight(); }
  double scale() const override { return config_.embedding_scale; }

 private:
  // Of the micro-batch's tokens, [T, hidden_size].
  at::Tensor positions(const at::Tensor& x, const nn::ForwardContext& context);

  OptConfig config_;
  nn::Embedding tokens_;
  std::optional<nn::Parameter> positions_;  // [2 + max_position_embeddings, hidden_size]
  std::optional<nn::Linear> project_in_;
};

class OptLayer final : public Block {
 public:
  OptLayer(const OptConfig& config, int64_t index, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // residual + dropout(attention(x)); residual + dropout(mlp(x)), which is the block's end or not.
  at::Tensor add_attention(const nn::Remakable& x, const at::Tensor& residual,
                           const nn::ForwardContext& context);
  at::Tensor add_mlp(const nn::Remakable& x, const at::Tensor& residual, bool is_last,
                     const nn::ForwardContext& context);

  OptConfig config_;
  int64_t index_;
  std::string path_;
  nn::Linear k_proj_, v_proj_, q_proj_, out_proj_;  // in the reference's order
  nn::LayerNorm self_attn_layer_norm_;
  nn::Linear fc1_, fc2_;
  nn::LayerNorm final_layer_norm_;
};

}  // namespace strata::models
