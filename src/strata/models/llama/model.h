// A Llama model for next-token prediction: the chain of its blocks. Owns: blocks, initial values.
// Never: memory of weights; ties and names of weights (tied_decoder.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/models/llama/blocks.h"
#include "strata/models/tied_decoder.h"
#include "strata/nn/attention/rope.h"

namespace strata::models {

using MakeDecoderLayer = std::function<std::unique_ptr<DecoderLayer>(
    const LlamaConfig& config, int64_t index, at::ScalarType storage, nn::Rope& rope)>;

template <typename Layer>
std::unique_ptr<DecoderLayer> make_decoder_layer(const LlamaConfig& config, int64_t index,
                                                 at::ScalarType storage, nn::Rope& rope) {
  return std::make_unique<Layer>(config, index, storage, rope);
}

class LlamaModel final : public TiedDecoder {
 public:
  LlamaModel(const LlamaConfig& config, at::ScalarType storage,
             const MakeDecoderLayer& make_layer = make_decoder_layer<LlamaDecoderLayer>);

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
  std::vector<std::string> never_quantized() const override { return config_.never_quantized; }
  bool names_mean_experts() const override { return config_.names_mean_experts; }
  int64_t buffer_bytes() const override;
  void attach_virtual_tokens(nn::VirtualTokens tokens) override;
  const nn::VirtualTokens* virtual_tokens() const override {
    return virtual_tokens_ ? &*virtual_tokens_ : nullptr;
  }
  nn::Parameter& embedding_weight() override { return *embedding_->weight(); }
  KeyValueShape key_value_shape() const override {
    return {config_.num_hidden_layers, config_.num_key_value_heads, config_.head_dim};
  }
  std::optional<HeadCounts> head_counts() const override {
    if (config_.has_states) return {};
    return HeadCounts{config_.num_attention_heads, config_.num_key_value_heads};
  }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t max_position_embeddings() const override { return config_.rope.reach(); }
  const LlamaConfig& config() const { return config_; }

 private:
  const std::shared_ptr<nn::Parameter>& table() const override { return embedding_->weight(); }
  nn::Linear& output_layer() const override { return head_->lm_head(); }
  // The rotation of layer i's heads.
  nn::Rope& rope_of(int64_t i);

  LlamaConfig config_;
  at::ScalarType storage_;
  nn::Rope rope_;
  std::optional<nn::Rope> local_rope_;
  std::unique_ptr<LlamaEmbedding> embedding_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::unique_ptr<LlamaHead> head_;
  std::optional<nn::VirtualTokens> virtual_tokens_;
};

}  // namespace strata::models
