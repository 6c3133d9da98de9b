#include "strata/models/llama/model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/nn/xielu.h"

namespace strata::models {
namespace {

TiedDecoder::Options tie_of(const LlamaConfig& c) {
  std::vector<std::string> ignored_layers = c.ignored_prefixes;
  for (int64_t i = 0; i < c.num_ignored_layers; ++i) {
    ignored_layers.push_back(fmt::format("model.layers.{}.", c.num_hidden_layers + i));
  }
  return {.tie_word_embeddings = c.tie_word_embeddings,
          .has_own_head = c.has_own_head,
          .num_labels = c.num_labels,
          .ignored_suffixes = {"rotary_emb.inv_freq"},
          .ignored_prefixes = std::move(ignored_layers)};
}

}  // namespace

LlamaModel::LlamaModel(const LlamaConfig& config, at::ScalarType storage,
                       const MakeDecoderLayer& make_layer)
    : TiedDecoder(tie_of(config), storage),
      config_(config),
      storage_(storage),
      rope_(config.rope),
      embedding_(std::make_unique<LlamaEmbedding>(config, storage)) {
  if (config.local_rope) local_rope_.emplace(*config.local_rope);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(make_layer(config, i, storage, rope_of(i)));
  }
  head_ = std::make_unique<LlamaHead>(config, storage, tied_table());
}

nn::Rope& LlamaModel::rope_of(int64_t i) {
  const bool is_local = local_rope_ && config_.windows.at(static_cast<size_t>(i)) != 0;
  return is_local ? *local_rope_ : rope_;
}

int64_t LlamaModel::buffer_bytes() const {
  // The embedding's scale is a buffer of its own in the reference, and a kind of layer that does
  // not occur has no table.
  const int64_t numel = config_.buffer_numel + (config_.embedding_scale != 1.0 ? 1 : 0);
  const int64_t of_others = numel * static_cast<int64_t>(c10::elementSize(storage_));
  if (!config_.has_rope_table) return of_others;
  const bool has_global = !local_rope_ || std::ranges::count(config_.windows, 0) > 0;
  return (has_global ? rope_.buffer_bytes() : 0) + (local_rope_ ? local_rope_->buffer_bytes() : 0) +
         config_.num_idle_tables * rope_.buffer_bytes() + of_others;
}

void LlamaModel::attach_virtual_tokens(nn::VirtualTokens tokens) {
  if (config_.has_states) {
    Model::attach_virtual_tokens(std::move(tokens));
  } else if (tokens.kind == nn::VirtualTokens::Kind::kPrompt) {
    embedding_->set_prompt(tokens.values);
  } else if (config_.has_latents) {
    throw ConfigError(
        "peft_type: found PREFIX_TUNING for a model with latent attention, expected no keys and "
        "values but its own; choose PROMPT_TUNING, LORA, IA3 or VERA");
  } else if (config_.attention_dropout > 0) {
    throw ConfigError(
        "config.json: found attention_dropout = {} with prefix tuning, expected 0; set it to 0",
        config_.attention_dropout);
  } else {
    for (const auto& layer : layers_) layer->set_prefix(tokens.values, tokens.projection);
  }
  virtual_tokens_ = std::move(tokens);
}

void LlamaModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                             at::Generator generator) const {
  const std::string& name = parameter.name();
  for (const auto& layer : layers_) {
    if (layer->init_weight(parameter, full, generator)) return;
  }
  const bool is_drawn = name.ends_with(".sinks") || name.ends_with(".router.bias");
  if (config_.zeros && name.ends_with(*config_.zeros)) {
    full.zero_();
  } else if (!is_drawn && (name.ends_with(".bias") || name.ends_with("_bias"))) {
    full.zero_();
  } else if (!is_drawn && parameter.shape().size() <= 1) {
    const double of_norm = config_.norm_kind == ops::RmsNormKind::kGemma ? 0.0 : 1.0;
    full.fill_(nn::Xielu::initial_value(name).value_or(of_norm));
  } else {
    const bool is_table = &parameter == table().get();
    const double range = config_.initializer_range;
    full.normal_(0.0, is_table ? config_.embedding_range.value_or(range) : range,
                 std::move(generator));
    if (is_table && config_.pad_token_id.has_value()) {
      full.select(0, *config_.pad_token_id).zero_();
    }
  }
}

}  // namespace strata::models
