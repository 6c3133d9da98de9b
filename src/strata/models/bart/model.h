// A model of BART's kind for conditional generation: encoder, then decoder, as one chain of blocks.
// Owns: blocks and initial values. Never: memory of weights; the tie of embeddings and output layer
// (encoder_decoder.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/bart/blocks.h"
#include "strata/models/encoder_decoder.h"

namespace strata::models {

class BartModel final : public EncoderDecoderModel {
 public:
  // The output layer is tied to the embedding unless `is_untied`, or the file of the weights has
  // another matrix for it (check_weights()).
  BartModel(const BartConfig& config, at::ScalarType storage, bool is_untied);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override;
  // ConfigError for a file that adds something to the logits.
  WeightSources check_weights(const hf::ModelFolder& folder) override;
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  // PEFT's, which has some for BART alone.
  std::vector<std::string> default_lora_targets() const override;
  std::vector<std::string> default_ia3_targets() const override;
  std::vector<std::string> default_ia3_feedforward() const override;
  int decoder_begin() const override {
    return static_cast<int>(encoder_.size()) + (encoder_norm_ ? 2 : 1);
  }
  // Or kStartsWithLastToken.
  std::optional<int64_t> decoder_start_id() const override {
    return config_.decoder_start_token_id;
  }
  int num_shelved() const override { return kEncoderOutput + 1; }
  std::string architecture() const override { return config_.prefix + "ForConditionalGeneration"; }
  size_t module_place(const std::string& weight) const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.d_model; }
  int64_t max_position_embeddings() const override { return config_.max_position_embeddings; }

 private:
  bool is_bart() const { return config_.prefix == "Bart"; }
  const std::shared_ptr<nn::Parameter>& table() const override { return shared_; }
  nn::Linear& output_layer() const override { return head_->lm_head(); }

  BartConfig config_;
  std::shared_ptr<nn::Parameter> shared_;
  std::unique_ptr<BartEmbedding> encoder_embedding_;
  std::vector<std::unique_ptr<BartLayer>> encoder_;
  std::unique_ptr<BartEncoderNorm> encoder_norm_;  // where layers have theirs first
  std::unique_ptr<BartEmbedding> decoder_embedding_;
  std::vector<std::unique_ptr<BartLayer>> decoder_;
  std::unique_ptr<BartHead> head_;
};

}  // namespace strata::models
