#include "strata/models/granite_hybrid/layers.h"

#include <fmt/format.h>

#include "strata/models/granite_moe/mixture.h"
#include "strata/models/llama/attention_mixer.h"
#include "strata/models/mamba/mixer.h"

namespace strata::models {
namespace {

std::unique_ptr<FeedForward> make_feed_forward(const GraniteHybridConfig& config,
                                               const std::string& layer, at::ScalarType storage) {
  const LlamaConfig& llama = config.llama;
  if (config.experts) {
    return std::make_unique<GraniteMixture>(
        GraniteMixtureOptions{.layer = layer,
                              .hidden_size = llama.hidden_size,
                              .experts = *config.experts,
                              .shared_intermediate_size = llama.intermediate_size,
                              .multiplier = llama.residual_multiplier,
                              .storage = storage});
  }
  GatedFeedForwardOptions mlp =
      granite_mlp(layer, llama.hidden_size, llama.intermediate_size, storage);
  mlp.multiplier = llama.residual_multiplier;
  return std::make_unique<GatedFeedForward>(mlp);
}

}  // namespace

MakeDecoderLayer make_granite_hybrid_layers(const GraniteHybridConfig& config) {
  auto lanes = std::make_shared<nn::LaneTable>(nn::LaneTable::Kind::kPacked);
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<TokenMixer> mixer;
    if (config.has_mamba.at(static_cast<size_t>(index))) {
      mixer = std::make_unique<MambaMixer>(config.mamba, index, storage, lanes);
    } else {
      mixer = std::make_unique<AttentionMixer>(llama, AttentionNames{}, index, storage, rope);
    }
    return std::make_unique<MixerLayer>(
        llama, index, storage, std::move(mixer),
        make_feed_forward(config, fmt::format("model.layers.{}", index), storage),
        ModuleOrder::kMixerLast);
  };
}

}  // namespace strata::models
