// A model that gives a text numbers by a bidirectional encoder: BERT, RoBERTa, XLM-RoBERTa,
// DistilBERT. Owns: the chain of blocks, weight names, initial values. Never: memory of weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/bert/blocks.h"

namespace strata::models {

class BertModel final : public Model {
 public:
  BertModel(const BertConfig& config, at::ScalarType storage);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.names.layer_class; }
  std::string architecture() const override { return config_.names.architecture; }
  WeightSources check_weights(const hf::ModelFolder& folder) override;
  bool ignores(const std::string& tensor) const override;
  size_t module_place(const std::string& weight) const override;
  bool reads_first_token() const override { return true; }
  bool is_of_document_head(const std::string& weight) const override;
  std::vector<std::string> never_quantized() const override;
  bool follow_tie(const hf::ModelFolder&) override { return false; }
  void describe_tie(Json&) const override {}
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override;
  std::vector<std::string> default_ia3_targets() const override;
  std::vector<std::string> default_ia3_feedforward() const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.num_positions(); }
  const BertConfig& config() const { return config_; }

 private:
  bool untie(const std::string&) override { return false; }

  BertConfig config_;
  std::unique_ptr<BertEmbeddings> embeddings_;
  std::vector<std::unique_ptr<BertLayer>> layers_;
  std::unique_ptr<BertHead> head_;
};

}  // namespace strata::models
