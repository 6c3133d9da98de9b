// The blocks of BERT: embeddings with their norm, layer, head. Owns: their layers and the order of
// operations. Never: gathering, checkpointing, the chain (bert/model.h).
//
// A norm stands after each sum. Attention sees a document's tokens before and after each.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/bert/config.h"
#include "strata/models/model.h"
#include "strata/nn/attention/relative_bias.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

// What layers read of relative positions, which the embeddings make for all of them.
enum BertShelf : int { kRelativePositions, kNumBertShelved };

// Rows of tokens, of token types and of positions, their norm, dropout, a layer where the tables
// have another width.
class BertEmbeddings final : public Block {
 public:
  BertEmbeddings(const BertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return config_.names.embedding_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  nn::Embedding* embedding() override { return &tokens_; }
  std::vector<Shelved> makes() const override;
  // ConfigError for a document of more tokens than there are positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  nn::Parameter& tokens() { return tokens_.weight(); }
  const nn::Parameter* positions() const { return positions_ ? &*positions_ : nullptr; }

 private:
  // Rows of the table of types, int64 [T]. ConfigError where it has none for a second text.
  at::Tensor type_rows(const nn::Batch& batch) const;
  // Rows of the table of positions, int64 [T].
  at::Tensor position_rows(const nn::Batch& batch) const;
  // Puts what layers read of relative positions on the shelf, where they do.
  void shelve_positions(const at::Tensor& x, const nn::ForwardContext& context);

  BertConfig config_;
  std::string path_;
  nn::Embedding tokens_;
  std::optional<nn::Parameter> types_, positions_;
  nn::LayerNorm norm_;
  std::optional<nn::Linear> projection_;
  std::optional<nn::RelativeBias> bias_;    // one of both, or none
  std::optional<nn::Parameter> relatives_;  // [2 span, hidden]
  std::optional<nn::LayerNorm> relatives_norm_;
};

class BertLayer final : public Block {
 public:
  // `path`: behind the body's layers. `index` counts all layers.
  BertLayer(const BertConfig& config, const std::string& path, int64_t index,
            at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.names.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<int> reads() const override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // Queries, keys and values.
  std::vector<at::Tensor> project(const at::Tensor& x, const nn::ForwardContext& context);
  // Those of them that are layers.
  std::vector<nn::Linear*> projections();
  // What tokens take of each other.
  at::Tensor mix(const std::vector<at::Tensor>& qkv, const nn::ForwardContext& context);
  // As keys and as queries, where they are.
  std::vector<at::Tensor> position_vectors(const nn::ForwardContext& context);
  // The norm of x + dropout(attention(x)), and of x + dropout(mlp(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  BertConfig config_;
  int64_t index_;
  std::string path_;
  // Or the first gives all three of them, before the biases.
  nn::Linear query_;
  std::optional<nn::Linear> key_, value_;
  std::optional<nn::Parameter> query_bias_, value_bias_;
  std::optional<nn::Linear> position_key_, position_query_;  // unless query and key serve them
  nn::Linear attention_output_;
  nn::LayerNorm attention_norm_;
  nn::Linear up_, down_;
  nn::LayerNorm output_norm_;
};

// A layer that computes once more, further on in the chain. What hangs on its weights hangs on the
// layer's.
class BertLayerAgain final : public Block {
 public:
  // `index` counts all layers.
  BertLayerAgain(BertLayer& layer, int64_t index) : layer_(layer), index_(index) {}

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return layer_.class_name(); }
  std::string path() const override { return layer_.path(); }
  std::vector<nn::Parameter*> parameters() override { return layer_.parameters(); }
  std::vector<nn::Linear*> linears() override { return {}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  BertLayer& layer_;
  int64_t index_;
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
