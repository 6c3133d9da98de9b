#include "strata/models/llama/model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/reward_head.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

constexpr const char* kEmbeddingWeight = "model.embed_tokens.weight";
constexpr const char* kHeadWeight = "lm_head.weight";

}  // namespace

LlamaModel::LlamaModel(const LlamaConfig& config, at::ScalarType storage,
                       const MakeDecoderLayer& make_layer)
    : config_(config),
      storage_(storage),
      rope_(config.rope),
      embedding_(std::make_unique<LlamaEmbedding>(config, storage)) {
  if (config.local_rope) local_rope_.emplace(*config.local_rope);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(make_layer(config, i, storage, rope_of(i)));
  }
  const bool is_tied =
      config.tie_word_embeddings && !config.has_own_head && !config.scores_documents;
  head_ = std::make_unique<LlamaHead>(config, storage, is_tied ? embedding_->weight() : nullptr);
}

std::vector<Block*> LlamaModel::blocks() {
  std::vector<Block*> chain{embedding_.get()};
  for (const auto& layer : layers_) chain.push_back(layer.get());
  chain.push_back(head_.get());
  return chain;
}

nn::Rope& LlamaModel::rope_of(int64_t i) {
  const bool is_local = local_rope_ && config_.windows.at(static_cast<size_t>(i)) != 0;
  return is_local ? *local_rope_ : rope_;
}

int64_t LlamaModel::buffer_bytes() const {
  // The embedding's scale is a buffer of its own in the reference, and a kind of layer that does
  // not occur has no table.
  const bool has_scale = config_.embedding_scale != 1.0;
  const bool has_global = !local_rope_ || std::ranges::count(config_.windows, 0) > 0;
  return (has_global ? rope_.buffer_bytes() : 0) + (local_rope_ ? local_rope_->buffer_bytes() : 0) +
         (has_scale ? static_cast<int64_t>(c10::elementSize(storage_)) : 0);
}

void LlamaModel::attach_virtual_tokens(nn::VirtualTokens tokens) {
  if (tokens.kind == nn::VirtualTokens::Kind::kPrompt) {
    embedding_->set_prompt(tokens.values);
  } else if (config_.attention_dropout > 0) {
    throw ConfigError(
        "config.json: found attention_dropout = {} beside prefix tuning, expected 0; set it to 0",
        config_.attention_dropout);
  } else {
    for (const auto& layer : layers_) layer->set_prefix(tokens.values, tokens.projection);
  }
  virtual_tokens_ = std::move(tokens);
}

bool LlamaModel::is_tied() const {
  return head_->lm_head().shared_weight() == embedding_->weight();
}

void LlamaModel::untie() {
  head_->lm_head().set_weight(untied_copy(kHeadWeight, *embedding_->weight(), storage_));
}

void LlamaModel::describe_tie(Json& config) const {
  if (!is_tied() && !config_.scores_documents) config["tie_word_embeddings"] = false;
}

bool LlamaModel::follow_tie(const hf::ModelFolder& folder) {
  const hf::TensorInfo* embedding = folder.find(kEmbeddingWeight);
  const hf::TensorInfo* head = folder.find(kHeadWeight);
  if (!is_tied() || embedding == nullptr || head == nullptr ||
      same_values(folder, *embedding, *head)) {
    return false;
  }
  untie();
  return true;
}

WeightSources LlamaModel::check_weights(const hf::ModelFolder& folder) {
  follow_tie(folder);
  const bool holds_both =
      !is_tied() && folder.find(kEmbeddingWeight) != nullptr && folder.find(kHeadWeight) != nullptr;
  const bool starts_head = config_.scores_documents && lacks_reward_head(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    if (parameter->name().starts_with(hf::kAdapterKeyPrefix)) continue;
    if (starts_head && parameter->name() == kRewardWeight) continue;
    expected.push_back({parameter, {parameter->name()}});
    if (!config_.tie_word_embeddings || holds_both) continue;
    // The file of a tied model may hold either name.
    if (parameter->name() == kEmbeddingWeight) expected.back().names.push_back(kHeadWeight);
    if (parameter->name() == kHeadWeight) expected.back().names.push_back(kEmbeddingWeight);
  }
  std::vector<std::string> ignored{"rotary_emb.inv_freq"};
  if (starts_head) ignored.push_back(kHeadWeight);
  std::vector<std::string> ignored_layers;
  for (int64_t i = 0; i < config_.num_ignored_layers; ++i) {
    ignored_layers.push_back(fmt::format("model.layers.{}.", config_.num_hidden_layers + i));
  }
  return match_weights(folder, expected, ignored, ignored_layers);
}

void LlamaModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                             at::Generator generator) const {
  const std::string& name = parameter.name();
  const bool is_drawn = name.ends_with(".sinks") || name.ends_with(".router.bias");
  if (!is_drawn && (name.ends_with(".bias") || name.ends_with("_bias"))) {
    full.zero_();
  } else if (!is_drawn && parameter.shape().size() == 1) {
    full.fill_(config_.norm_kind == ops::RmsNormKind::kGemma ? 0.0 : 1.0);
  } else {
    full.normal_(0.0, config_.initializer_range, std::move(generator));
    if (parameter.name() == kEmbeddingWeight && config_.pad_token_id.has_value()) {
      full.select(0, *config_.pad_token_id).zero_();
    }
  }
}

bool LlamaModel::untie(const std::string& name) {
  if (!is_tied() || (name != kEmbeddingWeight && name != kHeadWeight)) return false;
  untie();
  return true;
}

}  // namespace strata::models
