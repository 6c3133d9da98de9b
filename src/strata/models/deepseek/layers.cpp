#include "strata/models/deepseek/layers.h"

#include <fmt/format.h>

#include "strata/models/deepseek/latent_attention.h"
#include "strata/models/llama/mixer_layer.h"
#include "strata/models/moe/mixture.h"

namespace strata::models {

MakeDecoderLayer make_deepseek_layers(const DeepseekConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<FeedForward> experts;
    if (config.mixture.has_experts.at(static_cast<size_t>(index))) {
      experts = std::make_unique<Mixture>(config.mixture, fmt::format("model.layers.{}.mlp", index),
                                          storage);
    }
    return std::make_unique<MixerLayer>(
        llama, index, storage,
        std::make_unique<LatentAttention>(llama, config.attention, index, storage, rope),
        std::move(experts));
  };
}

}  // namespace strata::models
