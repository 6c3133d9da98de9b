#include "strata/models/qwen3_5/layers.h"

#include <fmt/format.h>

#include "strata/models/llama/mixer_layer.h"
#include "strata/models/moe/mixture.h"
#include "strata/models/qwen3_5/delta_net.h"
#include "strata/models/qwen3_5/gated_attention.h"

namespace strata::models {

MakeDecoderLayer make_qwen3_5_layers(const Qwen35Config& config) {
  auto lanes = std::make_shared<nn::LaneTable>();
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<TokenMixer> mixer;
    if (config.is_linear.at(static_cast<size_t>(index))) {
      mixer = std::make_unique<DeltaNet>(config, index, storage, lanes);
    } else {
      mixer = std::make_unique<GatedAttention>(llama, index, storage, rope);
    }
    std::unique_ptr<FeedForward> experts;
    if (config.mixture && config.mixture->has_experts.at(static_cast<size_t>(index))) {
      experts = std::make_unique<Mixture>(*config.mixture,
                                          fmt::format("model.layers.{}.mlp", index), storage);
    }
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer),
                                        std::move(experts));
  };
}

}  // namespace strata::models
