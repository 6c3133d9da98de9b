#include "strata/models/rotary_decoder/model.h"

#include <ATen/ATen.h>

namespace strata::models {
namespace {

DecoderEmbeddingOptions embedding_of(const RotaryDecoderConfig& c) {
  return {.path = c.embedding_name,
          .vocab_size = c.vocab_size,
          .hidden_size = c.hidden_size,
          .padding_id = c.pad_token_id,
          .dropout = c.embedding_dropout,
          .positions_path = c.rope ? "" : "transformer.wpe",
          .num_positions = c.max_position_embeddings,
          .positions_key = "max_position_embeddings"};
}

DecoderHeadOptions head_of(const RotaryDecoderConfig& c) {
  return {.norm_path = c.final_norm_name,
          .projection_path = "",
          .hidden_size = c.hidden_size,
          .output_size = c.hidden_size,
          .vocab_size = c.vocab_size,
          .norm_eps = c.norm_eps,
          .norm_affine = c.norm_affine,
          .logit_scale = c.logit_scale,
          .has_bias = c.head_bias,
          .num_labels = c.num_labels};
}

}  // namespace

RotaryDecoderModel::RotaryDecoderModel(const RotaryDecoderConfig& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.tie_word_embeddings,
                   .has_own_head = config.has_own_head,
                   .num_labels = config.num_labels,
                   .ignored_suffixes = config.ignored_suffixes},
                  storage),
      config_(config),
      embedding_(std::make_unique<DecoderEmbedding>(embedding_of(config), storage)) {
  if (config.rope) rope_.emplace(*config.rope);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(
        std::make_unique<RotaryDecoderLayer>(config, i, storage, rope_ ? &*rope_ : nullptr));
  }
  head_ = std::make_unique<DecoderHead>(head_of(config), storage, tied_table());
}

void RotaryDecoderModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                                     at::Generator generator) const {
  if (parameter.name().ends_with("_norm.weight")) {  // of heads, a matrix
    full.fill_(1.0);
    return;
  }
  init_as_decoder(parameter, full, config_.initializer_range, std::move(generator));
  if (&parameter == table().get() && config_.pad_token_id) {
    full.select(0, *config_.pad_token_id).zero_();
  }
}

}  // namespace strata::models
