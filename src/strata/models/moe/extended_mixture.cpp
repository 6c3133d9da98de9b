#include "strata/models/moe/extended_mixture.h"

#include "strata/models/moe/mixture.h"

namespace strata::models {

MakeDecoderLayer make_extended_mixture_layers(const ExtendedMixtureConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    ExtendedConfig layer = config.layer;
    layer.llama = llama;
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope,
                                                  make_mixture(config.mixture, index, storage));
  };
}

}  // namespace strata::models
