// ModernBERT with a head for whole texts. Owns: the chain of blocks, initial values. Never: memory
// of weights, which names files hold (encoder_model.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/encoder_model.h"
#include "strata/models/modernbert/blocks.h"

namespace strata::models {

class ModernBertModel final : public EncoderModel {
 public:
  ModernBertModel(const ModernBertConfig& config, at::ScalarType storage);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return "ModernBertEncoderLayer"; }
  std::string architecture() const override { return "ModernBertForSequenceClassification"; }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  // PEFT names none.
  std::vector<std::string> default_lora_targets() const override { return {}; }
  int64_t buffer_bytes() const override {
    return rope_.buffer_bytes() + window_rope_.buffer_bytes();
  }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.rope.reach(); }

 private:
  ModernBertConfig config_;
  nn::Rope rope_, window_rope_;
  std::unique_ptr<ModernBertEmbeddings> embeddings_;
  std::vector<std::unique_ptr<ModernBertLayer>> layers_;
  std::unique_ptr<ModernBertHead> head_;
};

}  // namespace strata::models
