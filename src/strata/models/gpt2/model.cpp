#include "strata/models/gpt2/model.h"

#include <cmath>

#include <ATen/ATen.h>

namespace strata::models {
namespace {

// Files of the first GPT-2s hold names without "transformer.", and causal masks.
TiedDecoder::Options tie_of(const Gpt2Config& c) {
  return {.tie_word_embeddings = c.tie_word_embeddings,
          .has_own_head = c.has_own_head,
          .num_labels = c.num_labels,
          .body_prefix = "transformer.",
          .ignored_suffixes = {".attn.bias", ".attn.masked_bias", "position_ids"}};
}

DecoderEmbeddingOptions embedding_of(const Gpt2Config& c) {
  return {.path = c.tokens,
          .vocab_size = c.vocab_size,
          .hidden_size = c.n_embd,
          .dropout = c.embd_pdrop,
          .positions_path = c.positions,
          .num_positions = c.n_positions,
          .positions_key = "n_positions"};
}

DecoderHeadOptions head_of(const Gpt2Config& c) {
  return {.norm_path = c.norms_come_last ? "" : "transformer.ln_f",
          .projection_path = "",
          .hidden_size = c.n_embd,
          .output_size = c.n_embd,
          .vocab_size = c.vocab_size,
          .norm_eps = c.layer_norm_epsilon,
          .num_labels = c.num_labels};
}

}  // namespace

Gpt2Model::Gpt2Model(const Gpt2Config& config, at::ScalarType storage)
    : TiedDecoder(tie_of(config), storage),
      config_(config),
      storage_(storage),
      embedding_(std::make_unique<DecoderEmbedding>(embedding_of(config), storage)) {
  for (int64_t i = 0; i < config.n_layer; ++i) {
    layers_.push_back(std::make_unique<Gpt2Block>(config, i, storage));
  }
  head_ = std::make_unique<DecoderHead>(head_of(config), storage, tied_table());
}

int64_t Gpt2Model::buffer_bytes() const {
  if (config_.keeps_mask) return config_.n_positions * config_.n_positions;
  return config_.buffer_numel * static_cast<int64_t>(c10::elementSize(storage_)) +
         config_.buffer_bytes;
}

void Gpt2Model::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  if (config_.matrix_range) {
    const bool is_of_layer = parameter.name().starts_with("transformer.h.");
    return init_as_decoder(parameter, std::move(full),
                           is_of_layer ? *config_.matrix_range : config_.initializer_range,
                           std::move(generator));
  }
  // What is added to the residual stream, 2 matrices a layer, begins smaller.
  const bool is_added = parameter.name().ends_with(".c_proj.weight");
  const double depth = is_added ? std::sqrt(2.0 * static_cast<double>(config_.n_layer)) : 1.0;
  init_as_decoder(parameter, std::move(full), config_.initializer_range / depth,
                  std::move(generator));
}

}  // namespace strata::models
