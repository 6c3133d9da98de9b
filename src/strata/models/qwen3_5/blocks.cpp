#include "strata/models/qwen3_5/blocks.h"

#include <fmt/format.h>

#include "strata/models/moe/mixture.h"
#include "strata/models/qwen3_5/delta_net.h"
#include "strata/models/qwen3_5/gated_attention.h"

namespace strata::models {
namespace {

nn::RmsNorm norm_of(const LlamaConfig& c, const std::string& path, at::ScalarType storage) {
  return {path, c.hidden_size, c.rms_norm_eps, storage, c.norm_kind};
}

}  // namespace

Qwen35Layer::Qwen35Layer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                         std::unique_ptr<TokenMixer> mixer, std::unique_ptr<FeedForward> experts)
    : layer_class_(c.layer_class),
      path_("model.layers." + std::to_string(index)),
      mixer_(std::move(mixer)),
      experts_(std::move(experts)),
      input_norm_(norm_of(c, path_ + ".input_layernorm", storage)),
      mlp_norm_(norm_of(c, path_ + ".post_attention_layernorm", storage)) {
  if (experts_ == nullptr) mlp_.emplace(c, path_ + ".mlp", storage);
}

std::vector<nn::Linear*> Qwen35Layer::linears() {
  std::vector<nn::Linear*> list = mixer_->linears();
  for (nn::Linear* layer : mlp_ ? mlp_->linears() : experts_->linears()) list.push_back(layer);
  return list;
}

std::vector<std::vector<nn::Linear*>> Qwen35Layer::fused_linears() {
  if (mlp_) return {};
  return experts_->fused_linears();
}

std::vector<nn::Parameter*> Qwen35Layer::parameters() {
  std::vector<nn::Parameter*> list;
  mixer_->append_parameters(list);
  if (mlp_) {
    mlp_->append_parameters(list);
  } else {
    experts_->append_parameters(list);
  }
  list.insert(list.end(), {&input_norm_.weight(), &mlp_norm_.weight()});
  return list;
}

at::Tensor Qwen35Layer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto first = input_norm_.forward_with_residual(x);
  const at::Tensor mixed = mixer_->add(first.normed, first.residual, context);
  const auto second = mlp_norm_.forward_with_residual(mixed);
  if (!mlp_) return experts_->add_last(second.normed, second.residual, context);
  return mlp_->down_proj().forward_add_last(mlp_->gated(second.normed, context), second.residual,
                                            context);
}

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
    return std::make_unique<Qwen35Layer>(llama, index, storage, std::move(mixer),
                                         std::move(experts));
  };
}

}  // namespace strata::models
