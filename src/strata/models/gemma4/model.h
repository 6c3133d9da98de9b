// A text model of Gemma 4 for next-token prediction: the chain of its blocks. Owns: blocks, initial
// values. Never: memory of weights; ties and names of weights (tied_decoder.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/gemma4/blocks.h"
#include "strata/models/tied_decoder.h"
#include "strata/nn/attention/rope.h"

namespace strata::models {

class Gemma4Model final : public TiedDecoder {
 public:
  Gemma4Model(const Gemma4Config& config, at::ScalarType storage);

  std::vector<Block*> blocks() override { return chain_of(*embedding_, layers_, *head_); }
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.llama.layer_class; }
  std::string architecture() const override { return config_.llama.architecture; }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override {
    return config_.llama.lora_targets;
  }
  int64_t buffer_bytes() const override;
  int num_shelved() const override;
  size_t module_place(const std::string& weight) const override;
  int64_t vocab_size() const override { return config_.llama.vocab_size; }
  int64_t hidden_size() const override { return config_.llama.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.llama.rope.reach(); }

 private:
  const std::shared_ptr<nn::Parameter>& table() const override { return embedding_->weight(); }
  nn::Linear& output_layer() const override { return head_->lm_head(); }

  Gemma4Config config_;
  at::ScalarType storage_;
  nn::Rope rope_;
  std::optional<nn::Rope> local_rope_;
  std::unique_ptr<Gemma4Embedding> embedding_;
  std::vector<std::unique_ptr<Gemma4DecoderLayer>> layers_;
  std::unique_ptr<LlamaHead> head_;
};

}  // namespace strata::models
