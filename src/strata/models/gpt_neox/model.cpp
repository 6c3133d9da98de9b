#include "strata/models/gpt_neox/model.h"

#include <ATen/ATen.h>

namespace strata::models {
namespace {

DecoderEmbeddingOptions embedding_of(const GptNeoXConfig& c) {
  return {.path = "gpt_neox.embed_in",
          .vocab_size = c.vocab_size,
          .hidden_size = c.hidden_size,
          .dropout = c.hidden_dropout};
}

DecoderHeadOptions head_of(const GptNeoXConfig& c) {
  return {.norm_path = "gpt_neox.final_layer_norm",
          .projection_path = "",
          .hidden_size = c.hidden_size,
          .output_size = c.hidden_size,
          .vocab_size = c.vocab_size,
          .norm_eps = c.layer_norm_eps,
          .num_labels = c.num_labels};
}

}  // namespace

GptNeoXModel::GptNeoXModel(const GptNeoXConfig& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.tie_word_embeddings,
                   .has_own_head = config.has_own_head,
                   .num_labels = config.num_labels,
                   .ignored_suffixes = {".attention.bias", ".attention.masked_bias",
                                        "rotary_emb.inv_freq"}},
                  storage),
      config_(config),
      rope_(config.rope),
      embedding_(std::make_unique<DecoderEmbedding>(embedding_of(config), storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<GptNeoXLayer>(config, i, storage, rope_));
  }
  head_ = std::make_unique<DecoderHead>(head_of(config), storage, tied_table());
}

void GptNeoXModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                               at::Generator generator) const {
  init_as_decoder(parameter, std::move(full), config_.initializer_range, std::move(generator));
}

}  // namespace strata::models
