#include "strata/models/bart/model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/models/tied_decoder.h"

namespace strata::models {
namespace {

constexpr const char* kShared = "model.shared.weight";
constexpr const char* kLogitsBias = "final_logits_bias";

// It trains nowhere, and published files hold zeros.
void require_no_logits_bias(const hf::ModelFolder& folder) {
  const hf::TensorInfo* bias = folder.find(kLogitsBias);
  if (bias == nullptr) return;
  const auto bytes = folder.bytes(*bias);
  if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) return;
  throw ConfigError(
      "{}: found \"{}\" with other values than 0, expected zeros, a model that adds nothing to its "
      "logits; use another checkpoint",
      folder.path().string(), kLogitsBias);
}

}  // namespace

BartModel::BartModel(const BartConfig& config, at::ScalarType storage, bool is_untied)
    : EncoderDecoderModel(
          storage,
          {.others = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"},
           .ignored = {kLogitsBias, "encoder.version", "decoder.version"}}),
      config_(config),
      shared_(std::make_shared<nn::Parameter>(
          kShared, std::vector<int64_t>{config.vocab_size, config.d_model}, storage)) {
  DropoutPlaces places;
  const auto make = [&](Stack stack, int64_t count, auto& embedding, auto& layers) {
    embedding = std::make_unique<BartEmbedding>(config, stack, shared_, storage, places.next());
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<BartLayer>(config, stack, i, storage, places));
    }
  };
  make(Stack::kEncoder, config.encoder.layers, encoder_embedding_, encoder_);
  make(Stack::kDecoder, config.decoder.layers, decoder_embedding_, decoder_);
  head_ = std::make_unique<BartHead>(config, storage, is_untied ? nullptr : shared_);
}

std::vector<Block*> BartModel::blocks() {
  std::vector<Block*> chain{encoder_embedding_.get()};
  for (const auto& layer : encoder_) chain.push_back(layer.get());
  chain.push_back(decoder_embedding_.get());
  for (const auto& layer : decoder_) chain.push_back(layer.get());
  chain.push_back(head_.get());
  return chain;
}

WeightSources BartModel::check_weights(const hf::ModelFolder& folder) {
  require_no_logits_bias(folder);
  return EncoderDecoderModel::check_weights(folder);
}

// The norm of a stack's embedding stands after its layers.
size_t BartModel::module_place(const std::string& weight) const {
  const auto is_of = [&](const char* module) { return weight.find(module) != std::string::npos; };
  if (is_of("model.encoder.")) return is_of(".layernorm_embedding.") ? 1 : 0;
  if (is_of("model.decoder.")) return is_of(".layernorm_embedding.") ? 3 : 2;
  return is_of("lm_head.") ? 4 : 0;
}

void BartModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  init_as_decoder(parameter, full, config_.init_std, std::move(generator));
  if (&parameter == shared_.get() && config_.pad_token_id) {
    full.select(0, *config_.pad_token_id).zero_();
  }
}

}  // namespace strata::models
