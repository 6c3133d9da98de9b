#include "strata/models/bart/model.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/models/sinusoids.h"
#include "strata/models/tied_decoder.h"

namespace strata::models {
namespace {

constexpr const char* kShared = "model.shared.weight";

std::vector<std::string> ignored_names(const BartConfig& config) {
  std::vector<std::string> names{"encoder.version", "decoder.version"};
  if (!config.has_logits_bias) names.push_back(kLogitsBias);
  if (config.positions == BartPositions::kM2m100) names.push_back("embed_positions.weights");
  if (config.positions == BartPositions::kMarian) names.push_back("embed_positions.weight");
  return names;
}

at::ScalarType scalar_type_of(hf::DType type) {
  if (type == hf::DType::kF16) return at::kHalf;
  return type == hf::DType::kBF16 ? at::kBFloat16 : at::kFloat;
}

// Files may hold what is computed here, rounded to their type.
void require_sinusoids(const hf::ModelFolder& folder, const BartConfig& config) {
  for (const char* name :
       {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}) {
    const hf::TensorInfo* info = folder.find(name);
    if (info == nullptr) continue;
    const int64_t count = config.max_position_embeddings;
    const at::ScalarType type = scalar_type_of(info->dtype);
    bool is_right = info->shape == std::vector<int64_t>{count, config.d_model};
    if (is_right) {
      const auto bytes = folder.bytes(*info);
      const at::Tensor held = at::empty(info->shape, type);
      is_right = bytes.size() == held.nbytes();
      if (is_right) std::memcpy(held.mutable_data_ptr(), bytes.data(), bytes.size());
      const at::Tensor expected =
          marian_sinusoids(at::arange(count, at::kLong), config.d_model).to(type).to(at::kFloat);
      const double most = type == at::kFloat ? 1e-5 : type == at::kHalf ? 1e-3 : 8e-3;
      is_right = is_right && at::allclose(held.to(at::kFloat), expected, /*rtol=*/0, most);
    }
    if (is_right) continue;
    throw ConfigError(
        "{}: found \"{}\" with other values than the sinusoids of {} positions "
        "(max_position_embeddings), expected those; use another checkpoint",
        folder.path().string(), name, count);
  }
}

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
    : EncoderDecoderModel(storage, {.others = {"model.encoder.embed_tokens.weight",
                                               "model.decoder.embed_tokens.weight"},
                                    .ignored = ignored_names(config)}),
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
  if (config.has_norms_first) encoder_norm_ = std::make_unique<BartEncoderNorm>(config, storage);
  make(Stack::kDecoder, config.decoder.layers, decoder_embedding_, decoder_);
  head_ = std::make_unique<BartHead>(config, storage, is_untied ? nullptr : shared_);
}

std::vector<Block*> BartModel::blocks() {
  std::vector<Block*> chain{encoder_embedding_.get()};
  for (const auto& layer : encoder_) chain.push_back(layer.get());
  if (encoder_norm_) chain.push_back(encoder_norm_.get());
  chain.push_back(decoder_embedding_.get());
  for (const auto& layer : decoder_) chain.push_back(layer.get());
  chain.push_back(head_.get());
  return chain;
}

std::string BartModel::no_split_class() const {
  return fmt::format("{0}EncoderLayer,{0}DecoderLayer", config_.prefix);
}

std::vector<std::string> BartModel::default_lora_targets() const {
  if (!is_bart()) return {};
  return {"q_proj", "v_proj"};
}

std::vector<std::string> BartModel::default_ia3_targets() const {
  if (!is_bart()) return {};
  return {"q_proj", "v_proj", "fc2"};
}

std::vector<std::string> BartModel::default_ia3_feedforward() const {
  if (!is_bart()) return {};
  return {"fc2"};
}

WeightSources BartModel::check_weights(const hf::ModelFolder& folder) {
  if (!config_.has_logits_bias) require_no_logits_bias(folder);
  if (config_.positions == BartPositions::kMarian) require_sinusoids(folder, config_);
  return EncoderDecoderModel::check_weights(folder);
}

// The norm of a stack's embedding stands after its layers, the norm behind those comes last.
size_t BartModel::module_place(const std::string& weight) const {
  const auto is_of = [&](const char* module) { return weight.find(module) != std::string::npos; };
  const size_t place = is_of(".layernorm_embedding.") ? 1 : is_of("coder.layer_norm.") ? 2 : 0;
  if (is_of("model.encoder.")) return place;
  if (is_of("model.decoder.")) return 3 + place;
  return is_of("lm_head.") || weight == kLogitsBias ? 6 : 0;
}

void BartModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  if (parameter.is_buffer()) {
    full.zero_();
    return;
  }
  init_as_decoder(parameter, full, config_.init_std, std::move(generator));
  if (&parameter == shared_.get() && config_.pad_token_id) {
    full.select(0, *config_.pad_token_id).zero_();
  }
}

}  // namespace strata::models
