// The first block of decoders without learned positions: rows of tokens, a norm of them, dropout.
// Owns: the table and that order. Never: the tie (tied_decoder.h).
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
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return tokens_.shared_weight(); }

 private:
  double dropout_rate_;
  nn::Embedding tokens_;
  std::optional<nn::LayerNorm> norm_;
};

}  // namespace strata::models
