#include "strata/models/opt/model.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace strata::models {
namespace {

DecoderHeadOptions head_of(const OptConfig& c) {
  return {.norm_path = c.has_final_norm() ? "model.decoder.final_layer_norm" : "",
          .projection_path = c.has_projections() ? "model.decoder.project_out" : "",
          .hidden_size = c.hidden_size,
          .output_size = c.word_embed_proj_dim,
          .vocab_size = c.vocab_size,
          .norm_eps = 1e-5,
          .has_affine_norm = c.layer_norm_elementwise_affine,
          .scores_documents = c.scores_documents};
}

// Modules in the reference's order.
size_t place_of(const nn::Parameter& parameter) {
  constexpr std::string_view kModules[] = {"decoder.embed_tokens.",     "decoder.embed_positions.",
                                           "decoder.project_out.",      "decoder.project_in.",
                                           "decoder.final_layer_norm.", "decoder.layers."};
  const auto* found = std::ranges::find_if(kModules, [&](std::string_view module) {
    return parameter.name().find(module) != std::string::npos;
  });
  return static_cast<size_t>(found - std::begin(kModules));
}

}  // namespace

OptModel::OptModel(const OptConfig& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.tie_word_embeddings,
                   .scores_documents = config.scores_documents,
                   .ignored_suffixes = {}},
                  storage),
      config_(config),
      embedding_(std::make_unique<OptEmbedding>(config, storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<OptLayer>(config, i, storage));
  }
  const bool is_tied =
      config.tie_word_embeddings && !config.has_own_head && !config.scores_documents;
  head_ = std::make_unique<DecoderHead>(head_of(config), storage,
                                        is_tied ? embedding_->weight() : nullptr);
}

std::vector<Block*> OptModel::blocks() {
  std::vector<Block*> chain{embedding_.get()};
  for (const auto& layer : layers_) chain.push_back(layer.get());
  chain.push_back(head_.get());
  return chain;
}

void OptModel::order_as_reference(std::vector<nn::Parameter*>& list) const {
  std::ranges::stable_sort(list, {}, [](const nn::Parameter* one) { return place_of(*one); });
}

void OptModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                           at::Generator generator) const {
  if (parameter.name().ends_with(".bias")) {
    full.zero_();
  } else if (parameter.shape().size() == 1) {
    full.fill_(1.0);
  } else {
    full.normal_(0.0, config_.init_std, std::move(generator));
    if (&parameter == table().get() && config_.pad_token_id) {
      full.select(0, *config_.pad_token_id).zero_();
    }
  }
}

}  // namespace strata::models
