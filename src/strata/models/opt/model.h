// An OPT or XGLM model for next-token prediction: the chain of its blocks. Owns: blocks, initial
// values, the order of its weights. Never: memory of weights; ties and names of weights
// (tied_decoder.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/decoder_head.h"
#include "strata/models/opt/blocks.h"
#include "strata/models/tied_decoder.h"

namespace strata::models {

class OptModel final : public TiedDecoder {
 public:
  OptModel(const OptConfig& config, at::ScalarType storage);

  std::vector<Block*> blocks() override { return chain_of(*embedding_, layers_, *head_); }
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.layer_class; }
  std::string architecture() const override { return config_.architecture; }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override { return config_.lora_targets; }
  std::vector<std::string> default_ia3_targets() const override { return config_.ia3_targets; }
  std::vector<std::string> default_ia3_feedforward() const override {
    return config_.ia3_feedforward;
  }
  int64_t buffer_bytes() const override;
  std::optional<HeadCounts> head_counts() const override {
    return HeadCounts{config_.num_attention_heads, config_.num_attention_heads};
  }
  size_t module_place(const std::string& weight) const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.max_position_embeddings; }

 private:
  const std::shared_ptr<nn::Parameter>& table() const override { return embedding_->weight(); }
  nn::Linear& output_layer() const override { return head_->output_layer(); }

  OptConfig config_;
  at::ScalarType storage_;
  std::unique_ptr<OptEmbedding> embedding_;
  std::vector<std::unique_ptr<OptLayer>> layers_;
  std::unique_ptr<DecoderHead> head_;
};

}  // namespace strata::models
