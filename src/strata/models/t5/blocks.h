// The blocks of a T5 model: the embeddings of encoder and decoder, T5Block of both, the encoder's
// last norm, the head. Owns: their layers and the order of operations. Never: gathering,
// checkpointing, the chain (t5/model.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/encoder_decoder.h"
#include "strata/models/model.h"
#include "strata/models/t5/config.h"
#include "strata/nn/attention/relative_bias.h"
#include "strata/nn/linear.h"
#include "strata/nn/norm.h"

namespace strata::models {

// Places on the shelf behind the encoder's output: the tables of relative positions, where the
// first block of a stack makes one for all of them.
enum T5Shelf : int { kEncoderBias = kEncoderOutput + 1, kDecoderBias, kNumShelved };

class T5Embedding final : public Block {
 public:
  // `shared`: one weight for both stacks.
  T5Embedding(const T5Config& config, Stack stack, std::shared_ptr<nn::Parameter> shared,
              uint64_t place_id);

  BlockKind kind() const override { return BlockKind::kEmbedding; }
  std::string class_name() const override { return "Embedding"; }
  std::string path() const override;
  std::vector<nn::Parameter*> parameters() override { return {shared_.get()}; }
  std::vector<nn::Linear*> linears() override { return {}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  double dropout_rate_;
  Stack stack_;
  std::shared_ptr<nn::Parameter> shared_;
  uint64_t place_id_;
};

// q, k, v and o of one attention, with its norm.
struct T5Attention {
  T5Attention(const std::string& layer_path, const char* name, const T5Config& c,
              at::ScalarType storage, DropoutPlaces& places);

  nn::Linear q, k, v, o;
  nn::RmsNorm norm;
  uint64_t scores_place, output_place;
};

class T5Block final : public Block {
 public:
  T5Block(const T5Config& config, Stack stack, int64_t index, at::ScalarType storage,
          DropoutPlaces& places);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return config_.prefix + "Block"; }
  std::string path() const override { return path_; }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override;
  std::vector<Shelved> makes() const override;
  std::vector<int> reads() const override;
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  bool is_decoder() const { return stack_ == Stack::kDecoder; }
  bool shares_bias() const { return !config_.has_bias_in_all; }
  int bias_slot() const { return is_decoder() ? kDecoderBias : kEncoderBias; }
  // x + attention(norm(x)) over the stack's own tokens, x + attention(norm(x), encoder's output),
  // x + mlp(norm(x)).
  at::Tensor attend(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor attend_source(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& context);
  at::Tensor position_bias(const at::Tensor& x, const nn::ForwardContext& context, int64_t reach);
  // residual + dropout(layer(x)).
  at::Tensor add(const nn::Linear& layer, const nn::Remakable& x, const at::Tensor& residual,
                 uint64_t place_id, const nn::ForwardContext& context) const;

  T5Config config_;
  Stack stack_;
  int64_t index_;
  std::string path_;
  T5Attention self_attention_;
  std::optional<nn::RelativeBias> relative_bias_;  // of the first block, or of each
  std::unique_ptr<T5Attention> cross_attention_;   // of the decoder
  std::optional<nn::Linear> wi_, wi_0_, wi_1_;     // the first, or the other two
  nn::Linear wo_;
  nn::RmsNorm norm_;
  uint64_t hidden_place_, output_place_;
};

// The encoder's last norm, whose output every block of the decoder reads.
class T5EncoderNorm final : public Block {
 public:
  T5EncoderNorm(const T5Config& config, at::ScalarType storage, uint64_t place_id);

  BlockKind kind() const override { return BlockKind::kLayer; }
  std::string class_name() const override { return prefix_ + "LayerNorm"; }
  std::string path() const override { return "encoder.final_layer_norm"; }
  std::vector<nn::Parameter*> parameters() override { return {&norm_.weight()}; }
  std::vector<nn::Linear*> linears() override { return {}; }
  std::vector<Shelved> makes() const override { return {{kEncoderOutput, true}}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

 private:
  std::string prefix_;
  double dropout_rate_;
  nn::RmsNorm norm_;
  uint64_t place_id_;
};

// The decoder's last norm, output layer and loss.
class T5Head final : public Block {
 public:
  // `tied`: the embedding's weight, or null for a weight of its own.
  T5Head(const T5Config& config, at::ScalarType storage, std::shared_ptr<nn::Parameter> tied,
         uint64_t place_id);

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
  at::Tensor output_input(const at::Tensor& x, const nn::ForwardContext& context);

  double dropout_rate_;
  double scale_;
  nn::RmsNorm norm_;
  nn::Linear lm_head_;
  uint64_t place_id_;
};

}  // namespace strata::models
