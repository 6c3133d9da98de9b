#include "strata/models/lfm2/layers.h"

#include <fmt/format.h>

#include "strata/models/lfm2/short_conv.h"
#include "strata/models/llama/attention_mixer.h"
#include "strata/models/llama/gated_feed_forward.h"
#include "strata/models/moe/mixture.h"

namespace strata::models {
namespace {

std::unique_ptr<FeedForward> make_feed_forward(const Lfm2Config& config, const LlamaConfig& llama,
                                               int64_t index, at::ScalarType storage) {
  const std::string path = fmt::format("model.layers.{}.feed_forward", index);
  if (config.mixture && config.mixture->has_experts.at(static_cast<size_t>(index))) {
    return std::make_unique<Mixture>(*config.mixture, path, storage);
  }
  return std::make_unique<GatedFeedForward>(
      GatedFeedForwardOptions{.path = path,
                              .gate = "w1",
                              .up = "w3",
                              .down = "w2",
                              .hidden_size = llama.hidden_size,
                              .intermediate_size = llama.intermediate_size,
                              .storage = storage});
}

}  // namespace

MakeDecoderLayer make_lfm2_layers(const Lfm2Config& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    std::unique_ptr<TokenMixer> mixer;
    if (config.is_conv.at(static_cast<size_t>(index))) {
      mixer = std::make_unique<ShortConv>(config, index, storage);
    } else {
      const AttentionNames names{
          .output = "out_proj", .query_norm = "q_layernorm", .key_norm = "k_layernorm"};
      mixer = std::make_unique<AttentionMixer>(llama, names, index, storage, rope);
    }
    return std::make_unique<MixerLayer>(llama, index, storage, std::move(mixer),
                                        make_feed_forward(config, llama, index, storage));
  };
}

}  // namespace strata::models
