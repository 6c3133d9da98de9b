// The blocks of a BART model: the embeddings of encoder and decoder, BartLayer of both, the head.
// Owns: their layers and the order of operations. Never: gathering, checkpointing, the chain
// (bart/model.h).
//
// A norm stands after each sum.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/bart/config.h"
#include "strata/models/encoder_decoder.h"
#include "strata/models/model.h"
#include "strata/nn/layer_norm.h"
#include "strata/nn/linear.h"

namespace strata::models {

// Rows of tokens and of positions, their norm, dropout.
class BartEmbedding final : public Block {
 public:
  // `shared`: one weight for both stacks.
  BartEmbedding(const BartConfig& config, Stack stack, std::shared_ptr<nn::Parameter> shared,
                at::ScalarType storage, uint64_t place_id);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "BartScaledWordEmbedding"; }
  std::string path() const override { return path_ + ".embed_tokens"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  // ConfigError for a document of more tokens than there are positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  BartConfig config_;
  Stack stack_;
  std::string path_;
  std::shared_ptr<nn::Parameter> shared_;
  nn::Parameter positions_;
  nn::LayerNorm norm_;
  uint64_t place_id_;
};

// The projections of one attention, with the norm after it.
struct BartAttention {
  BartAttention(const std::string& path, const std::string& norm_path, int64_t d_model,
                at::ScalarType storage, DropoutPlaces& places);

  void append_parameters(std::vector<nn::Parameter*>& list);

  nn::Linear k, v, q, out;
  nn::LayerNorm norm;
  uint64_t scores_place, output_place;
};

class BartLayer final : public Block {
 public:
  BartLayer(const BartConfig& config, Stack stack, int64_t index, at::ScalarType storage,
            DropoutPlaces& places);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override {
    return is_decoder() ? "BartDecoderLayer" : "BartEncoderLayer";
  }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<Shelved> makes() const override;
  std::vector<int> reads() const override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  bool is_decoder() const { return stack_ == Stack::kDecoder; }
  // Its output is what the decoder reads.
  bool ends_encoder() const { return !is_decoder() && index_ + 1 == config_.encoder.layers; }
  const BartStackConfig& own() const { return is_decoder() ? config_.decoder : config_.encoder; }
  nn::BiasedAttentionShape shape_of(const nn::Batch& queries, const nn::Batch& keys,
                                    uint64_t place) const;
  // The norms of x + attention(x) over the stack's own tokens, x + attention(x, encoder's output)
  // and x + mlp(x).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor attend_source(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);

  BartConfig config_;
  Stack stack_;
  int64_t index_;
  std::string path_;
  BartAttention self_attention_;
  std::unique_ptr<BartAttention> cross_attention_;  // of the decoder
  nn::Linear fc1_, fc2_;
  nn::LayerNorm norm_;
  uint64_t hidden_place_, output_place_;
};

// The output layer and the loss.
class BartHead final : public Block {
 public:
  // `tied`: the embedding's weight, or null for a weight of its own.
  BartHead(const BartConfig& config, at::ScalarType storage, std::shared_ptr<nn::Parameter> tied);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return "lm_head"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&lm_head_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override {
    return loss_or_logits(x, lm_head_, context);
  }

  // fp32 [rows, vocab].
  at::Tensor logits(const at::Tensor& x);
  nn::Linear& lm_head() { return lm_head_; }

 private:
  nn::Linear lm_head_;
};

}  // namespace strata::models
