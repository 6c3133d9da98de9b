#include "strata/models/granite_moe/layers.h"

#include <memory>

#include <fmt/format.h>

#include "strata/models/granite_moe/mixture.h"
#include "strata/models/llama/extended_layer.h"

namespace strata::models {

MakeDecoderLayer make_granite_moe_layers(const GraniteMoeConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mixture = std::make_unique<GraniteMixture>(
        GraniteMixtureOptions{.layer = fmt::format("model.layers.{}", index),
                              .hidden_size = llama.hidden_size,
                              .experts = config.experts,
                              .shared_intermediate_size = config.shared_intermediate_size,
                              .multiplier = llama.residual_multiplier,
                              .storage = storage});
    const ExtendedConfig layer{.llama = llama, .norms_come_first = true};
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope, std::move(mixture));
  };
}

}  // namespace strata::models
