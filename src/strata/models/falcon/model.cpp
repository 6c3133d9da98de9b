#include "strata/models/falcon/model.h"

#include <ATen/ATen.h>

namespace strata::models {
namespace {

DecoderEmbeddingOptions embedding_of(const FalconConfig& c) {
  return {.path = c.names.embedding,
          .vocab_size = c.vocab_size,
          .hidden_size = c.hidden_size,
          .norm_path = c.has_embedding_norm ? "transformer.word_embeddings_layernorm" : "",
          .norm_eps = c.layer_norm_eps};
}

DecoderHeadOptions head_of(const FalconConfig& c) {
  return {.norm_path = c.names.final_norm,
          .projection_path = "",
          .hidden_size = c.hidden_size,
          .output_size = c.hidden_size,
          .vocab_size = c.vocab_size,
          .norm_eps = c.layer_norm_eps,
          .norm_affine = c.norm_affine,
          .num_labels = c.num_labels};
}

}  // namespace

FalconModel::FalconModel(const FalconConfig& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.tie_word_embeddings,
                   .has_own_head = config.has_own_head,
                   .num_labels = config.num_labels,
                   .ignored_suffixes = {"rotary_emb.inv_freq"}},
                  storage),
      config_(config),
      embedding_(std::make_unique<DecoderEmbedding>(embedding_of(config), storage)) {
  if (config.rope) {
    positions_.rope.emplace(*config.rope);
  } else {
    const int64_t heads = config.num_attention_heads;
    positions_.alibi.emplace(config.has_spread_slopes ? nn::spread_alibi_slopes(heads)
                                                      : nn::alibi_slopes(heads));
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<FalconLayer>(config, i, storage, positions_));
  }
  head_ = std::make_unique<DecoderHead>(head_of(config), storage, tied_table());
}

int64_t FalconModel::max_position_embeddings() const {
  return config_.rope ? config_.rope->reach() : config_.max_position_embeddings;
}

void FalconModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                              at::Generator generator) const {
  init_as_decoder(parameter, std::move(full), config_.initializer_range, std::move(generator));
}

}  // namespace strata::models
