#include "strata/models/opt/model.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace strata::models {
namespace {

DecoderHeadOptions head_of(const OptConfig& c) {
  return {.norm_path = c.has_final_norm() ? c.body + "." + c.final_norm : "",
          .projection_path = c.has_projections() ? c.body + ".project_out" : "",
          .hidden_size = c.hidden_size,
          .output_size = c.word_embed_proj_dim,
          .vocab_size = c.vocab_size,
          .norm_eps = 1e-5,
          .norm_affine = c.norm_affine(),
          .num_labels = c.num_labels};
}

// Old files hold what is computed here.
std::vector<std::string> ignored_suffixes(const OptConfig& c) {
  if (c.has_sinusoids) return {"embed_positions.weights"};
  return {};
}

}  // namespace

OptModel::OptModel(const OptConfig& config, at::ScalarType storage)
    : TiedDecoder({.tie_word_embeddings = config.tie_word_embeddings,
                   .has_own_head = config.has_own_head,
                   .num_labels = config.num_labels,
                   .ignored_suffixes = ignored_suffixes(config)},
                  storage),
      config_(config),
      storage_(storage),
      embedding_(std::make_unique<OptEmbedding>(config, storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<OptLayer>(config, i, storage));
  }
  head_ = std::make_unique<DecoderHead>(head_of(config), storage, tied_table());
}

int64_t OptModel::buffer_bytes() const {
  if (!config_.has_sinusoids) return 0;
  return (config_.max_position_embeddings + 2) * config_.hidden_size *
         static_cast<int64_t>(c10::elementSize(storage_));
}

size_t OptModel::module_place(const std::string& weight) const {
  if (!config_.has_modules_of_opt) return 0;
  // The reference makes what stands after its layers before them.
  constexpr std::string_view kModules[] = {"decoder.embed_tokens.",     "decoder.embed_positions.",
                                           "decoder.project_out.",      "decoder.project_in.",
                                           "decoder.final_layer_norm.", "decoder.layers."};
  const auto* found = std::ranges::find_if(
      kModules, [&](std::string_view module) { return weight.find(module) != std::string::npos; });
  return static_cast<size_t>(found - std::begin(kModules));
}

void OptModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                           at::Generator generator) const {
  init_as_decoder(parameter, full, config_.init_std, std::move(generator));
  if (&parameter == table().get() && config_.pad_token_id) {
    full.select(0, *config_.pad_token_id).zero_();
  }
}

}  // namespace strata::models
