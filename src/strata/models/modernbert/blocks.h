// The blocks of ModernBERT: embeddings with their norm, layer, head. Owns: their layers and the
// order of operations. Never: gathering, checkpointing, the chain (modernbert/model.h).
//
// A norm stands ahead of each module; attention sees a document's tokens before and after each, in
// most layers those of a window.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/models/model.h"
#include "strata/models/modernbert/config.h"
#include "strata/nn/attention/rope.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class ModernBertEmbeddings final : public Block {
 public:
  ModernBertEmbeddings(const ModernBertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "ModernBertEmbeddings"; }
  std::string path() const override { return "model.embeddings"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  nn::Embedding* embedding() override { return &tokens_; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  double dropout_;
  nn::Embedding tokens_;
  nn::LayerNorm norm_;
};

class ModernBertLayer final : public Block {
 public:
  // `rope` is shared by all layers of a kind and must outlive them.
  ModernBertLayer(const ModernBertConfig& config, int64_t index, at::ScalarType storage,
                  nn::Rope& rope);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return "ModernBertEncoderLayer"; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // x + dropout(attention(norm(x))), and x + mlp(norm(x)), the block's end.
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  ModernBertConfig config_;
  int64_t index_;
  std::string path_;
  nn::Rope& rope_;
  std::optional<nn::LayerNorm> attention_norm_;  // the first layer has none
  nn::Linear qkv_, attention_output_;
  nn::LayerNorm mlp_norm_;
  nn::Linear up_, down_;  // up: what is activated, then what that is multiplied by
};

// The final norm, two layers over the row of a document's first token or the mean of all, the loss.
class ModernBertHead final : public Block {
 public:
  ModernBertHead(const ModernBertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return classifier_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&dense_, &classifier_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, labels] for rows that are a document each.
  at::Tensor logits(const at::Tensor& x);

 private:
  // [rows, labels] of normed rows; the context's batch is of these rows.
  at::Tensor read(const at::Tensor& rows, const nn::ForwardContext& context);

  ModernBertConfig config_;
  nn::LayerNorm final_norm_;
  nn::Linear dense_;
  nn::LayerNorm norm_;
  nn::Linear classifier_;
};

}  // namespace strata::models
