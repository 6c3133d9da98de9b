#include "strata/models/gemma4/model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace strata::models {
namespace {

// Layers that read others' keys and values need not make any, but files hold the weights.
std::vector<std::string> unread_weights(const Gemma4Config& config) {
  std::vector<std::string> prefixes;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].keys != KeysOf::kEarlier) continue;
    for (const char* name : {"k_proj", "v_proj", "k_norm", "v_norm"}) {
      prefixes.push_back(fmt::format("model.layers.{}.self_attn.{}.", i, name));
    }
  }
  return prefixes;
}

}  // namespace

Gemma4Model::Gemma4Model(const Gemma4Config& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.llama.tie_word_embeddings,
                   .has_own_head = config.llama.has_own_head,
                   .num_labels = config.llama.num_labels,
                   .ignored_prefixes = unread_weights(config)},
                  storage),
      config_(config),
      storage_(storage),
      rope_(config.llama.rope),
      embedding_(std::make_unique<Gemma4Embedding>(config, storage)) {
  if (config.llama.local_rope) local_rope_.emplace(*config.llama.local_rope);
  for (int64_t i = 0; i < config.llama.num_hidden_layers; ++i) {
    const bool is_global = config.layers.at(static_cast<size_t>(i)).is_global;
    layers_.push_back(
        std::make_unique<Gemma4DecoderLayer>(config, i, storage, is_global ? rope_ : *local_rope_));
  }
  head_ = std::make_unique<LlamaHead>(config.llama, storage, tied_table());
}

int64_t Gemma4Model::buffer_bytes() const {
  // Beside the angles the scale of each embedding; the layers' numbers are weights here.
  const int64_t num_scales = config_.per_layer_size == 0 ? 1 : 2;
  return rope_.buffer_bytes() + (local_rope_ ? local_rope_->buffer_bytes() : 0) +
         num_scales * static_cast<int64_t>(c10::elementSize(storage_));
}

int Gemma4Model::num_shelved() const {
  return kFirstLayerVectors + static_cast<int>(config_.llama.num_hidden_layers);
}

void Gemma4Model::init_weight(const nn::Parameter& parameter, at::Tensor full,
                              at::Generator generator) const {
  init_as_decoder(parameter, full, config_.llama.initializer_range, std::move(generator));
  const auto padding = config_.llama.pad_token_id;
  const bool is_table = parameter.is_embedding_table() && padding.has_value();
  if (is_table) full.select(0, *padding).zero_();
}

// What makes the layers' vectors stands after the last norm.
size_t Gemma4Model::module_place(const std::string& weight) const {
  const auto is_of = [&](const char* module) { return weight.find(module) != std::string::npos; };
  if (is_of("lm_head.")) return 2;
  return is_of("model.embed_tokens_per_layer.") || is_of("model.per_layer_model_projection.") ||
         is_of("model.per_layer_projection_norm.");
}

}  // namespace strata::models
