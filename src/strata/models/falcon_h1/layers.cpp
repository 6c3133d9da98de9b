#include "strata/models/falcon_h1/layers.h"

#include "strata/models/bamba/layers.h"
#include "strata/models/falcon_h1/side_by_side_mixer.h"

namespace strata::models {

MakeDecoderLayer make_falcon_h1_layers(const FalconH1Config& config) {
  auto lanes = std::make_shared<nn::LaneTable>(nn::LaneTable::Kind::kPacked);
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mixer = std::make_unique<SideBySideMixer>(config, index, storage, rope, lanes);
    GatedFeedForwardOptions of_mlp = bamba_mlp(llama, index, storage);
    of_mlp.gate_multiplier = config.gate;
    of_mlp.multiplier = config.down;
    auto mlp = std::make_unique<GatedFeedForward>(of_mlp);
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer), std::move(mlp),
                                        ModuleOrder::kMlpMixerNorms);
  };
}

}  // namespace strata::models
