#include "strata/models/falcon_h1/layers.h"

#include <fmt/format.h>

#include "strata/models/falcon_h1/side_by_side_mixer.h"
#include "strata/models/llama/gated_feed_forward.h"

namespace strata::models {

MakeDecoderLayer make_falcon_h1_layers(const FalconH1Config& config) {
  auto lanes = std::make_shared<nn::LaneTable>(nn::LaneTable::Kind::kPacked);
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mixer = std::make_unique<SideBySideMixer>(config, index, storage, rope, lanes);
    auto mlp = std::make_unique<GatedFeedForward>(
        GatedFeedForwardOptions{.path = fmt::format("model.layers.{}.feed_forward", index),
                                .gate = "gate_proj",
                                .up = "up_proj",
                                .down = "down_proj",
                                .hidden_size = llama.hidden_size,
                                .intermediate_size = llama.intermediate_size,
                                .bias = llama.mlp_bias,
                                .gate_multiplier = config.gate,
                                .multiplier = config.down,
                                .storage = storage});
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer), std::move(mlp),
                                        ModuleOrder::kMlpMixerNorms);
  };
}

}  // namespace strata::models
