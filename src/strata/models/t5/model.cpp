#include "strata/models/t5/model.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

constexpr const char* kShared = "shared.weight";
// Other names of the shared embedding, which older files hold beside it.
constexpr const char* kEmbeddingNames[] = {"encoder.embed_tokens.weight",
                                           "decoder.embed_tokens.weight"};

void require_one_embedding(const hf::ModelFolder& folder) {
  const hf::TensorInfo* shared = folder.find(kShared);
  for (const char* name : kEmbeddingNames) {
    const hf::TensorInfo* other = folder.find(name);
    if (shared == nullptr || other == nullptr || same_values(folder, *shared, *other)) continue;
    throw ConfigError(
        "{}: found \"{}\" with other values than \"{}\", expected one embedding for encoder and "
        "decoder; use a checkpoint that shares it",
        folder.path().string(), name, kShared);
  }
}

}  // namespace

T5Model::T5Model(const T5Config& config, at::ScalarType storage, bool is_untied)
    : TiedModel(storage),
      config_(config),
      shared_(std::make_shared<nn::Parameter>(
          kShared, std::vector<int64_t>{config.vocab_size, config.d_model}, storage)) {
  T5DropoutPlaces places;
  encoder_embedding_ =
      std::make_unique<T5Embedding>(config, T5Stack::kEncoder, shared_, places.next());
  for (int64_t i = 0; i < config.num_layers; ++i) {
    encoder_.push_back(std::make_unique<T5Block>(config, T5Stack::kEncoder, i, storage, places));
  }
  encoder_norm_ = std::make_unique<T5EncoderNorm>(config, storage, places.next());
  decoder_embedding_ =
      std::make_unique<T5Embedding>(config, T5Stack::kDecoder, shared_, places.next());
  for (int64_t i = 0; i < config.num_decoder_layers; ++i) {
    decoder_.push_back(std::make_unique<T5Block>(config, T5Stack::kDecoder, i, storage, places));
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

WeightSources T5Model::check_weights(const hf::ModelFolder& folder) {
  require_one_embedding(folder);
  follow_tie(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    if (parameter->name().starts_with(hf::kAdapterKeyPrefix)) continue;
    expected.push_back({parameter, {parameter->name()}});
    std::vector<std::string>& names = expected.back().names;
    if (parameter == shared_.get()) {
      names.insert(names.end(), std::begin(kEmbeddingNames), std::end(kEmbeddingNames));
      if (is_tied()) names.push_back(kHeadWeight);
    }
    // An adapter that trains the output layer has untied it from a file that ties.
    if (parameter->name() == kHeadWeight) names.push_back(kShared);
  }
  // The reference ignores this relic of the first checkpoints too.
  return match_weights(folder, expected,
                       {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"});
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
