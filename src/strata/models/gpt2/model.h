// A GPT-2 or gpt_bigcode model for next-token prediction: the chain of its blocks. Owns: blocks,
// the tie between embedding and output layer, weight names and initial values. Never: memory of
// weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/models/decoder_head.h"
#include "strata/models/gpt2/blocks.h"
#include "strata/models/model.h"

namespace strata::models {

class Gpt2Model final : public Model {
 public:
  Gpt2Model(const Gpt2Config& config, at::ScalarType storage);

  std::vector<Block*> blocks() override;
  at::Tensor logits(const at::Tensor& x) override { return head_->logits(x); }
  std::string no_split_class() const override { return config_.layer_class; }
  std::string architecture() const override { return config_.architecture; }
  // Files of the first GPT-2s hold names without "transformer." and causal masks.
  WeightSources check_weights(const hf::ModelFolder& folder) override;
  bool follow_tie(const hf::ModelFolder& folder) override;
  bool is_called_tied() const override {
    return config_.tie_word_embeddings && !config_.scores_documents;
  }
  void init_weight(const nn::Parameter& parameter, at::Tensor full,
                   at::Generator generator) const override;
  std::vector<std::string> default_lora_targets() const override { return {"c_attn"}; }
  std::vector<std::string> default_ia3_targets() const override { return {"c_attn", "mlp.c_proj"}; }
  std::vector<std::string> default_ia3_feedforward() const override { return {"mlp.c_proj"}; }
  int64_t buffer_bytes() const override;
  std::optional<HeadCounts> head_counts() const override {
    return HeadCounts{config_.n_head, config_.num_kv_heads()};
  }
  void describe_tie(Json& config) const override;
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.n_embd; }
  int64_t max_position_embeddings() const override { return config_.n_positions; }

 private:
  bool is_tied() const { return head_->output_layer().shared_weight() == embedding_->weight(); }
  // Gives the output layer a parameter "lm_head.weight" of its own.
  void untie();
  bool untie(const std::string& name) override;

  Gpt2Config config_;
  at::ScalarType storage_;
  std::unique_ptr<Gpt2Embedding> embedding_;
  std::vector<std::unique_ptr<Gpt2Block>> layers_;
  std::unique_ptr<DecoderHead> head_;
};

}  // namespace strata::models
