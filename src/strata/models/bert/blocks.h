// The blocks of BERT: embeddings with their norm, layer, head. Owns: their layers and the order of
// operations. Never: gathering, checkpointing, the chain (bert/model.h).
//
// A norm stands behind each sum. Attention sees a document's tokens before and behind each.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/bert/config.h"
#include "strata/models/model.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

// Rows of tokens, of token types and of positions, their norm, dropout.
class BertEmbeddings final : public Block {
 public:
  BertEmbeddings(const BertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return config_.names.embedding_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  nn::Embedding* embedding() override { return &tokens_; }
  // ConfigError for a document of more tokens than there are positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  nn::Parameter& tokens() { return tokens_.weight(); }
  const nn::Parameter& positions() const { return positions_; }

 private:
  // Rows of the table of types, int64 [T]. ConfigError where it has none for a second text.
  at::Tensor type_rows(const nn::Batch& batch) const;
  // Rows of the table of positions, int64 [T].
  at::Tensor position_rows(const nn::Batch& batch) const;

  BertConfig config_;
  std::string path_;
  nn::Embedding tokens_;
  std::optional<nn::Parameter> types_;
  nn::Parameter positions_;
  nn::LayerNorm norm_;
};

class BertLayer final : public Block {
 public:
  BertLayer(const BertConfig& config, int64_t index, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.names.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // The norm of x + dropout(attention(x)), and of x + dropout(mlp(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  BertConfig config_;
  int64_t index_;
  std::string path_;
  nn::Linear query_, key_, value_, attention_output_;
  nn::LayerNorm attention_norm_;
  nn::Linear up_, down_;
  nn::LayerNorm output_norm_;
};

// Two layers over the row of a document's first token, and the loss.
class BertHead final : public Block {
 public:
  BertHead(const BertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return classifier_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&dense_, &classifier_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, labels].
  at::Tensor logits(const at::Tensor& x);

 private:
  // [rows, labels]; the context's batch is of these rows.
  at::Tensor read(const at::Tensor& rows, const nn::ForwardContext& context);

  BertConfig config_;
  nn::Linear dense_, classifier_;
};

}  // namespace strata::models
