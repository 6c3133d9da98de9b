#include "strata/models/bamba/layers.h"

#include <fmt/format.h>

#include "strata/models/llama/attention_mixer.h"
#include "strata/models/mamba/mixer.h"

namespace strata::models {

GatedFeedForwardOptions bamba_mlp(const LlamaConfig& llama, int64_t index, at::ScalarType storage) {
  return {.path = fmt::format("model.layers.{}.feed_forward", index),
          .gate = "gate_proj",
          .up = "up_proj",
          .down = "down_proj",
          .hidden_size = llama.hidden_size,
          .intermediate_size = llama.intermediate_size,
          .bias = llama.mlp_bias,
          .storage = storage};
}

MakeDecoderLayer make_bamba_layers(const BambaConfig& config) {
  auto lanes = std::make_shared<nn::LaneTable>(nn::LaneTable::Kind::kPacked);
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<TokenMixer> mixer;
    if (config.has_mamba.at(static_cast<size_t>(index))) {
      mixer = std::make_unique<MambaMixer>(config.mamba, index, storage, lanes);
    } else {
      mixer = std::make_unique<AttentionMixer>(llama, AttentionNames{}, index, storage, rope);
    }
    auto mlp = std::make_unique<GatedFeedForward>(bamba_mlp(llama, index, storage));
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer), std::move(mlp),
                                        ModuleOrder::kMlpNormsMixer);
  };
}

}  // namespace strata::models
