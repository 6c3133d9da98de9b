#include "strata/models/gpt2/model.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/reward_head.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

constexpr const char* kEmbeddingWeight = "transformer.wte.weight";
constexpr const char* kHeadWeight = "lm_head.weight";
constexpr std::string_view kPrefix = "transformer.";

// The tensor under its name or, as the reference takes it too, under that of the body alone.
const hf::TensorInfo* find_either(const hf::ModelFolder& folder, const std::string& name) {
  const hf::TensorInfo* info = folder.find(name);
  return info != nullptr ? info : folder.find(name.substr(kPrefix.size()));
}

}  // namespace

Gpt2Model::Gpt2Model(const Gpt2Config& config, at::ScalarType storage)
    : config_(config),
      storage_(storage),
      embedding_(std::make_unique<Gpt2Embedding>(config, storage)) {
  for (int64_t i = 0; i < config.n_layer; ++i) {
    layers_.push_back(std::make_unique<Gpt2Block>(config, i, storage));
  }
  const bool is_tied =
      config.tie_word_embeddings && !config.has_own_head && !config.scores_documents;
  const DecoderHeadOptions head{.norm_path = "transformer.ln_f",
                                .projection_path = "",
                                .hidden_size = config.n_embd,
                                .output_size = config.n_embd,
                                .vocab_size = config.vocab_size,
                                .norm_eps = config.layer_norm_epsilon,
                                .scores_documents = config.scores_documents};
  head_ = std::make_unique<DecoderHead>(head, storage, is_tied ? embedding_->weight() : nullptr);
}

std::vector<Block*> Gpt2Model::blocks() {
  std::vector<Block*> chain{embedding_.get()};
  for (const auto& layer : layers_) chain.push_back(layer.get());
  chain.push_back(head_.get());
  return chain;
}

int64_t Gpt2Model::buffer_bytes() const {
  return config_.keeps_mask ? config_.n_positions * config_.n_positions : 0;
}

void Gpt2Model::untie() {
  head_->output_layer().set_weight(untied_copy(kHeadWeight, *embedding_->weight(), storage_));
}

void Gpt2Model::describe_tie(Json& config) const {
  if (!is_tied() && !config_.scores_documents) config["tie_word_embeddings"] = false;
}

bool Gpt2Model::follow_tie(const hf::ModelFolder& folder) {
  const hf::TensorInfo* embedding = find_either(folder, kEmbeddingWeight);
  const hf::TensorInfo* head = folder.find(kHeadWeight);
  if (!is_tied() || embedding == nullptr || head == nullptr ||
      same_values(folder, *embedding, *head)) {
    return false;
  }
  untie();
  return true;
}

WeightSources Gpt2Model::check_weights(const hf::ModelFolder& folder) {
  follow_tie(folder);
  const bool has_head = folder.find(kHeadWeight) != nullptr;
  const bool holds_both =
      !is_tied() && has_head && find_either(folder, kEmbeddingWeight) != nullptr;
  const bool may_share = config_.tie_word_embeddings && !holds_both;
  const bool starts_head = config_.scores_documents && lacks_reward_head(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    const std::string& name = parameter->name();
    if (name.starts_with(hf::kAdapterKeyPrefix)) continue;
    if (starts_head && name == kRewardWeight) continue;
    expected.push_back({parameter, {name}});
    std::vector<std::string>& names = expected.back().names;
    if (name.starts_with(kPrefix)) names.push_back(name.substr(kPrefix.size()));
    // The file of a tied model may hold either name.
    if (may_share && name == kEmbeddingWeight) names.push_back(kHeadWeight);
    if (may_share && name == kHeadWeight) {
      names.insert(names.end(),
                   {kEmbeddingWeight, std::string(kEmbeddingWeight).substr(kPrefix.size())});
    }
  }
  std::vector<std::string> ignored{".attn.bias", ".attn.masked_bias"};
  if (starts_head) ignored.push_back(kHeadWeight);
  return match_weights(folder, expected, ignored);
}

void Gpt2Model::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  const std::string& name = parameter.name();
  if (name.ends_with(".bias")) {
    full.zero_();
  } else if (parameter.shape().size() == 1) {
    full.fill_(1.0);
  } else {
    // What is added to the residual stream, 2 matrices a layer, begins smaller.
    const bool is_added = name.ends_with(".c_proj.weight");
    const double depth = is_added ? std::sqrt(2.0 * static_cast<double>(config_.n_layer)) : 1.0;
    full.normal_(0.0, config_.initializer_range / depth, std::move(generator));
  }
}

bool Gpt2Model::untie(const std::string& name) {
  if (!is_tied() || (name != kEmbeddingWeight && name != kHeadWeight)) return false;
  untie();
  return true;
}

}  // namespace strata::models
