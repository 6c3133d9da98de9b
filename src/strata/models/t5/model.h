// A T5, mT5 or UMT5 model for conditional generation: encoder, then decoder, as one chain of
// blocks. Owns: blocks, weight names and initial values. Never: memory of weights; how the tie of
// embeddings and output layer ends (tied_model.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/t5/blocks.h"

namespace strata::models {

class T5Model final : public EncoderDecoderModel {
 public:
  // The output layer is tied to the embedding unless `is_untied`, or the file of the weights has
  // another matrix for it (check_weights()).
  T5Model(const T5Config& config, at::ScalarType storage, bool is_untied);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.prefix + "Block"; }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override;
  std::vector<std::string> default_ia3_targets() const override;
  std::vector<std::string> default_ia3_feedforward() const override;
  int decoder_begin() const override;
  std::optional<int64_t> decoder_start_id() const override {
    return config_.decoder_start_token_id;
  }
  int num_shelved() const override { return kNumShelved; }
  std::string architecture() const override { return config_.prefix + "ForConditionalGeneration"; }
  std::vector<std::string> never_quantized() const override { return {"wo"}; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.d_model; }
  // Positions are relative: there is no limit but that of a row.
  int64_t max_position_embeddings() const override { return int64_t{1} << 24; }
  const T5Config& config() const { return config_; }

 private:
  const std::shared_ptr<nn::Parameter>& table() const override { return shared_; }
  nn::Linear& output_layer() const override { return head_->lm_head(); }

  T5Config config_;
  std::shared_ptr<nn::Parameter> shared_;
  std::unique_ptr<T5Embedding> encoder_embedding_;
  std::vector<std::unique_ptr<T5Block>> encoder_;
  std::unique_ptr<T5EncoderNorm> encoder_norm_;
  std::unique_ptr<T5Embedding> decoder_embedding_;
  std::vector<std::unique_ptr<T5Block>> decoder_;
  std::unique_ptr<T5Head> head_;
};

}  // namespace strata::models
