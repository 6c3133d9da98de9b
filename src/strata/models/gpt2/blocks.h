// The blocks of GPT-2 and gpt_bigcode: embeddings of tokens and positions, layer. Owns: their
// layers and the order of operations. Never: the head (decoder_head.h), gathering, checkpointing,
// the chain (gpt2/model.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/gpt2/config.h"
#include "strata/models/model.h"
#include "strata/nn/embedding.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

class Gpt2Embedding final : public Block {
 public:
  Gpt2Embedding(const Gpt2Config& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "Embedding"; }
  std::string path() const override { return tokens_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  nn::Embedding* embedding() override { return &tokens_; }
  // ConfigError for a document of more tokens than there are positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  const std::shared_ptr<nn::Parameter>& weight() const { return tokens_.shared_weight(); }

 private:
  double dropout_rate_;
  nn::Embedding tokens_;
  nn::Parameter positions_;  // [n_positions, n_embd]
};

class Gpt2Block final : public Block {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t index, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.layer_class; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  enum class DropoutPlace { kScores, kAttention, kMlp, kCount };
  uint64_t place_id(DropoutPlace place) const;
  // x + dropout(attention(norm(x))); x + dropout(mlp(norm(x))).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  Gpt2Config config_;
  int64_t index_;
  std::string path_;
  nn::LayerNorm ln_1_;
  nn::Linear c_attn_, attention_c_proj_;
  nn::LayerNorm ln_2_;
  nn::Linear c_fc_, mlp_c_proj_;
};

}  // namespace strata::models
