// The first block of decoders: rows of tokens, of positions where these are learned, a norm of
// them, dropout. Owns: the tables and that order. Never: the tie (tied_decoder.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/model.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"

namespace strata::models {

struct DecoderEmbeddingOptions {
  std::string path;  // "model.embed_tokens"
  int64_t vocab_size;
  int64_t hidden_size;
  std::optional<int64_t> padding_id = {};  // a row without gradient
  double dropout = 0;                      // while training
  std::string norm_path = {};              // of a norm of the rows; empty: none
  double norm_eps = 0;
  std::string positions_path = {};  // of a table of positions; empty: none
  int64_t num_positions = 0;
  const char* positions_key = "";  // of config.json, which says how many
};

class DecoderEmbedding final : public Block {
 public:
  DecoderEmbedding(const DecoderEmbeddingOptions& options, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "Embedding"; }
  std::string path() const override { return tokens_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  nn::Embedding* embedding() override { return &tokens_; }
  // ConfigError for a document of more tokens than there are learned positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return tokens_.shared_weight(); }

 private:
  double dropout_rate_;
  nn::Embedding tokens_;
  std::optional<nn::Parameter> positions_;  // [num_positions, hidden_size]
  const char* positions_key_;
  std::optional<nn::LayerNorm> norm_;
};

}  // namespace strata::models
