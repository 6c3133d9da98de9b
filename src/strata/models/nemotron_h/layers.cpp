#include "strata/models/nemotron_h/layers.h"

#include <memory>

#include <fmt/format.h>

#include "strata/models/llama/attention_mixer.h"
#include "strata/models/llama/plain_mlp.h"
#include "strata/models/mamba/mixer.h"
#include "strata/models/nemotron_h/layer.h"
#include "strata/models/nemotron_h/mixture.h"

namespace strata::models {
namespace {

using Kind = NemotronLayerKind;

std::unique_ptr<FeedForward> make_feed_forward(const NemotronHConfig& config, int64_t index,
                                               at::ScalarType storage) {
  const std::string path = fmt::format("model.layers.{}.mixer", index);
  if (config.kinds.at(static_cast<size_t>(index)) == Kind::kMixture) {
    return std::make_unique<NemotronMixture>(config, path, storage);
  }
  return std::make_unique<PlainMlp>(PlainMlpConfig{.llama = config.llama}, path, storage);
}

}  // namespace

MakeDecoderLayer make_nemotron_h_layers(const NemotronHConfig& config) {
  auto lanes = std::make_shared<nn::LaneTable>(nn::LaneTable::Kind::kPacked);
  return [config, lanes](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                         nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    const Kind kind = config.kinds.at(static_cast<size_t>(index));
    std::unique_ptr<TokenMixer> mixer;
    std::unique_ptr<FeedForward> feed_forward;
    if (kind == Kind::kMamba) {
      mixer = std::make_unique<MambaMixer>(config.mamba, index, storage, lanes);
    } else if (kind == Kind::kAttention) {
      mixer = std::make_unique<AttentionMixer>(llama, AttentionNames{.module = "mixer"}, index,
                                               storage, rope);
    } else {
      feed_forward = make_feed_forward(config, index, storage);
    }
    return std::make_unique<NemotronLayer>(llama, index, storage, std::move(mixer),
                                           std::move(feed_forward));
  };
}

}  // namespace strata::models
