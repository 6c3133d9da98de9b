// A model that gives a text numbers by a bidirectional encoder: BERT, RoBERTa, XLM-RoBERTa,
// CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, DeBERTa. Owns: the chain of blocks, initial
// values. Never: memory of weights, which names files hold (encoder_model.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/bert/blocks.h"
#include "strata/models/encoder_model.h"

namespace strata::models {

class BertModel final : public EncoderModel {
 public:
  BertModel(const BertConfig& config, at::ScalarType storage);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.names.layer_class; }
  std::string architecture() const override { return config_.names.architecture; }
  size_t module_place(const std::string& weight) const override;
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override {
    return config_.names.lora_targets;
  }
  std::vector<std::string> default_ia3_targets() const override {
    return config_.names.ia3_targets;
  }
  int num_shelved() const override { return kNumBertShelved; }
  std::vector<std::string> default_ia3_feedforward() const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_position_embeddings() const override {
    return config_.has_positions ? config_.num_positions() : int64_t{1} << 24;
  }
  const BertConfig& config() const { return config_; }

 private:
  void add_layers(at::ScalarType storage);

  BertConfig config_;
  std::unique_ptr<BertEmbeddings> embeddings_;
  std::vector<std::unique_ptr<Block>> layers_;
  std::unique_ptr<BertHead> head_;
};

}  // namespace strata::models
