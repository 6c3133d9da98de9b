// EuroBERT with a head for whole texts: Llama's embedding and layers, whose tokens see those after
// them, too. Owns: the head, the chain of blocks, initial values. Never: embedding and layers
// (llama/blocks.h), memory of weights, which names files hold (encoder_model.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/encoder_model.h"
#include "strata/models/eurobert/config.h"
#include "strata/models/llama/blocks.h"

namespace strata::models {

// The final norm, two layers over rows of each document, and the loss.
class EuroBertHead final : public Block {
 public:
  EuroBertHead(const EuroBertConfig& config, at::ScalarType storage);

  BlockKind kind() const override { return BlockKind::kHead; }
  std::string class_name() const override { return "Linear"; }
  std::string path() const override { return classifier_.path(); }
  std::vector<nn::Parameter*> parameters() override;
  std::vector<nn::Linear*> linears() override { return {&dense_, &classifier_}; }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& context) override;

  // fp32 [rows, labels], of each row alone.
  at::Tensor logits(const at::Tensor& x);

 private:
  // [rows, labels] of normed rows; the context's batch is of these rows.
  at::Tensor read(const at::Tensor& rows, const nn::ForwardContext& context);

  EuroBertPooling pooling_;
  nn::RmsNorm norm_;
  nn::Linear dense_, classifier_;
};

class EuroBertModel final : public EncoderModel {
 public:
  EuroBertModel(const EuroBertConfig& config, at::ScalarType storage);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.llama.layer_class; }
  std::string architecture() const override { return config_.llama.architecture; }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  // PEFT names none.
  std::vector<std::string> default_lora_targets() const override { return {}; }
  int64_t buffer_bytes() const override { return rope_.buffer_bytes(); }
  int64_t vocab_size() const override { return config_.llama.vocab_size; }
  int64_t hidden_size() const override { return config_.llama.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.llama.rope.reach(); }

 private:
  EuroBertConfig config_;
  nn::Rope rope_;
  std::unique_ptr<LlamaEmbedding> embedding_;
  std::vector<std::unique_ptr<LlamaDecoderLayer>> layers_;
  std::unique_ptr<EuroBertHead> head_;
};

}  // namespace strata::models
