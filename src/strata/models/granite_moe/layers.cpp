#include "strata/models/granite_moe/layers.h"

#include <memory>

#include <fmt/format.h>

#include "strata/models/granite_moe/mixture.h"
#include "strata/models/llama/extended_layer.h"

namespace strata::models {
namespace {

std::unique_ptr<GraniteMixture> make_mixture(const GraniteMoeConfig& config,
                                             const LlamaConfig& llama, int64_t index,
                                             at::ScalarType storage) {
  return std::make_unique<GraniteMixture>(
      GraniteMixtureOptions{.layer = fmt::format("model.layers.{}", index),
                            .hidden_size = llama.hidden_size,
                            .experts = config.experts,
                            .shared_intermediate_size = config.shared_intermediate_size,
                            .multiplier = llama.residual_multiplier,
                            .storage = storage});
}

}  // namespace

MakeDecoderLayer make_granite_moe_layers(const GraniteMoeConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    const ExtendedConfig layer{.llama = llama, .norms_come_first = true};
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope,
                                                  make_mixture(config, llama, index, storage));
  };
}

MakeDecoderLayer make_granite_moe_swa_layers(const GraniteMoeConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    LlamaConfig layer = llama;
    layer.norms_come_first = true;
    return std::make_unique<LlamaDecoderLayer>(layer, index, storage, rope,
                                               make_mixture(config, llama, index, storage));
  };
}

}  // namespace strata::models
