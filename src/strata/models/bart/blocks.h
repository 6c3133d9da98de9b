// The blocks of a BART model and of those made like it: the embeddings of encoder and decoder,
// BartLayer of both, the encoder's last norm, the head. Owns: their layers and the order of
// operations. Never: gathering, checkpointing, the chain (bart/model.h).
//
// Norms stand behind each sum, or ahead of what is added and behind all layers of a stack.
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

// The buffer that is added to logits; most families' files hold zeros under this name.
inline constexpr const char* kLogitsBias = "final_logits_bias";

// Rows of tokens and of positions, of some families their norm, dropout.
class BartEmbedding final : public Block {
 public:
  // `shared`: one weight for both stacks.
  BartEmbedding(const BartConfig& config, Stack stack, std::shared_ptr<nn::Parameter> shared,
                at::ScalarType storage, uint64_t place_id);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override {
    const bool is_plain = config_.positions == BartPositions::kMarian;
    return is_plain ? "Embedding" : config_.prefix + "ScaledWordEmbedding";
  }
  std::string path() const override { return path_ + ".embed_tokens"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  // ConfigError for a document of more tokens than there are positions.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  // Of the stack's own tokens; `x` as forward() has it.
  at::Tensor positions(const at::Tensor& x, const nn::ForwardContext& own);

  BartConfig config_;
  Stack stack_;
  std::string path_;
  std::shared_ptr<nn::Parameter> shared_;
  std::optional<nn::Parameter> positions_;
  std::optional<nn::LayerNorm> norm_;
  uint64_t place_id_;
};

// The projections of one attention, with its norm.
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
    return config_.prefix + (is_decoder() ? "DecoderLayer" : "EncoderLayer");
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
  bool ends_encoder() const {
    return !is_decoder() && !config_.has_norms_first && index_ + 1 == config_.encoder.layers;
  }
  const BartStackConfig& own() const { return is_decoder() ? config_.decoder : config_.encoder; }
  nn::BiasedAttentionShape shape_of(const nn::Batch& queries, const nn::Batch& keys,
                                    uint64_t place) const;
  // residual + attention(x) over the stack's own tokens, residual + attention(x, encoder's output)
  // and residual + mlp(x).
  at::Tensor attend(const nn::Remakable& x, const at::Tensor& residual,
                    const nn::ForwardContext& context);
  at::Tensor attend_source(const nn::Remakable& x, const at::Tensor& residual,
                           const nn::ForwardContext& context);
  at::Tensor transform(const nn::Remakable& x, const at::Tensor& residual,
                       const nn::ForwardContext& context);
  // Such a sum with the norm where the family has it.
  using Sum = at::Tensor (BartLayer::*)(const nn::Remakable&, const at::Tensor&,
                                        const nn::ForwardContext&);
  at::Tensor with_norm(nn::LayerNorm& norm, Sum sum, const at::Tensor& x,
                       const nn::ForwardContext& context);
  // Whether this pass of training leaves the layer out; all ranks draw alike.
  bool is_left_out(const at::Tensor& x, const nn::ForwardContext& context) const;

  BartConfig config_;
  Stack stack_;
  int64_t index_;
  std::string path_;
  BartAttention self_attention_;
  std::unique_ptr<BartAttention> cross_attention_;  // of the decoder
  nn::Linear fc1_, fc2_;
  nn::LayerNorm norm_;
  uint64_t hidden_place_, output_place_;
  uint64_t left_out_place_ = 0;
};

// The norm behind an encoder whose layers have theirs first: every layer of the decoder reads it.
class BartEncoderNorm final : public Block {
 public:
  BartEncoderNorm(const BartConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return "LayerNorm"; }
  std::string path() const override { return "model.encoder.layer_norm"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {}; }
  std::vector<Shelved> makes() const override { return {{kEncoderOutput, true}}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  nn::LayerNorm norm_;
};

// The decoder's last norm where its layers have theirs first, the output layer and the loss.
class BartHead final : public Block {
 public:
  // `tied`: the embedding's weight, or null for a weight of its own.
  BartHead(const BartConfig& config, at::ScalarType storage, std::shared_ptr<nn::Parameter> tied);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return "lm_head"; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&lm_head_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, vocab].
  at::Tensor logits(const at::Tensor& x);
  nn::Linear& lm_head() { return lm_head_; }

 private:
  std::optional<nn::LayerNorm> norm_;
  nn::Linear lm_head_;
};

}  // namespace strata::models
