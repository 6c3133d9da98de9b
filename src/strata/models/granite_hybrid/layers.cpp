#include "strata/models/granite_hybrid/layers.h"

#include <fmt/format.h>

#include "strata/models/granite_hybrid/mixture.h"
#include "strata/models/llama/attention_mixer.h"
#include "strata/models/mamba/mixer.h"

namespace strata::models {

MakeDecoderLayer make_granite_hybrid_layers(const GraniteHybridConfig& config) {
  auto lanes = std::make_shared<nn::LaneTable>();
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<TokenMixer> mixer;
    if (config.has_mamba.at(static_cast<size_t>(index))) {
      mixer = std::make_unique<MambaMixer>(config.mamba, index, storage, lanes);
    } else {
      mixer = std::make_unique<AttentionMixer>(llama, AttentionNames{}, index, storage, rope);
    }
    const std::string path = fmt::format("model.layers.{}", index);
    std::unique_ptr<FeedForward> mlp;
    if (config.experts) {
      mlp = std::make_unique<GraniteHybridMixture>(config, path, storage);
    } else {
      mlp = std::make_unique<GatedFeedForward>(
          granite_mlp(config, path, llama.residual_multiplier, storage));
    }
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer), std::move(mlp),
                                        ModuleOrder::kMixerLast);
  };
}

}  // namespace strata::models
