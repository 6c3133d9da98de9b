#include "strata/models/t5/model.h"

#include <cmath>

#include <ATen/ATen.h>

namespace strata::models {
namespace {

constexpr const char* kShared = "shared.weight";

}  // namespace

T5Model::T5Model(const T5Config& config, at::ScalarType storage, bool is_untied)
    : EncoderDecoderModel(
          storage,
          {.others = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"},
           // The reference ignores this relic of the first checkpoints too.
           .ignored = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}}),
      config_(config),
      shared_(std::make_shared<nn::Parameter>(
          kShared, std::vector<int64_t>{config.vocab_size, config.d_model}, storage)) {
  DropoutPlaces places;
  encoder_embedding_ =
      std::make_unique<T5Embedding>(config, Stack::kEncoder, shared_, places.next());
  for (int64_t i = 0; i < config.num_layers; ++i) {
    encoder_.push_back(std::make_unique<T5Block>(config, Stack::kEncoder, i, storage, places));
  }
  encoder_norm_ = std::make_unique<T5EncoderNorm>(config, storage, places.next());
  decoder_embedding_ =
      std::make_unique<T5Embedding>(config, Stack::kDecoder, shared_, places.next());
  for (int64_t i = 0; i < config.num_decoder_layers; ++i) {
    decoder_.push_back(std::make_unique<T5Block>(config, Stack::kDecoder, i, storage, places));
  }
  head_ = std::make_unique<T5Head>(config, storage, is_untied ? nullptr : shared_, places.next());
}

std::vector<Block*> T5Model::blocks() {
  std::vector<Block*> chain{encoder_embedding_.get()};
  for (const auto& block : encoder_) chain.push_back(block.get());
  chain.push_back(encoder_norm_.get());
  chain.push_back(decoder_embedding_.get());
  for (const auto& block : decoder_) chain.push_back(block.get());
  chain.push_back(head_.get());
  return chain;
}

int T5Model::decoder_begin() const { return static_cast<int>(encoder_.size()) + 2; }

// PEFT has none for UMT5.
std::vector<std::string> T5Model::default_lora_targets() const {
  if (config_.prefix == "UMT5") return {};
  return {"q", "v"};
}

std::vector<std::string> T5Model::default_ia3_targets() const {
  if (config_.prefix == "UMT5") return {};
  return {"k", "v", config_.prefix == "MT5" ? "wi_1" : "wo"};
}

std::vector<std::string> T5Model::default_ia3_feedforward() const {
  if (config_.prefix != "T5") return {};
  return {"wo"};
}

void T5Model::init_weight(const nn::Parameter& parameter, at::Tensor full,
                          at::Generator generator) const {
  const std::string& name = parameter.name();
  const double model = std::pow(static_cast<double>(config_.d_model), -0.5);
  const double head = static_cast<double>(config_.d_kv);
  double deviation = model;  // k, v, wi and the buckets of positions
  if (name.ends_with("layer_norm.weight")) {
    full.fill_(config_.initializer_factor);
    return;
  }
  if (name == kShared || name == kHeadWeight) deviation = 1.0;
  if (name.ends_with(".q.weight")) deviation = model * std::pow(head, -0.5);
  if (name.ends_with(".o.weight")) {
    deviation = std::pow(static_cast<double>(config_.num_heads) * head, -0.5);
  }
  if (name.ends_with(".wo.weight")) deviation = std::pow(static_cast<double>(config_.d_ff), -0.5);
  full.normal_(0.0, config_.initializer_factor * deviation, std::move(generator));
}

}  // namespace strata::models
