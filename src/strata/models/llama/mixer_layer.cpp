#include "strata/models/llama/mixer_layer.h"

namespace strata::models {
namespace {

nn::RmsNorm norm_of(const LlamaConfig& c, const std::string& path, at::ScalarType storage) {
  return {path, c.hidden_size, c.rms_norm_eps, storage, c.norm_kind};
}

}  // namespace

MixerLayer::MixerLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                       std::unique_ptr<TokenMixer> mixer, std::unique_ptr<FeedForward> feed_forward)
    : layer_class_(c.layer_class),
      path_("model.layers." + std::to_string(index)),
      mixer_(std::move(mixer)),
      feed_forward_(std::move(feed_forward)),
      input_norm_(norm_of(c, path_ + ".input_layernorm", storage)),
      mlp_norm_(norm_of(c, path_ + ".post_attention_layernorm", storage)) {
  if (feed_forward_ == nullptr) mlp_.emplace(c, path_ + ".mlp", storage);
}

std::vector<nn::Linear*> MixerLayer::linears() {
  std::vector<nn::Linear*> list = mixer_->linears();
  for (nn::Linear* layer : mlp_ ? mlp_->linears() : feed_forward_->linears()) list.push_back(layer);
  return list;
}

std::vector<std::vector<nn::Linear*>> MixerLayer::fused_linears() {
  if (mlp_) return {};
  return feed_forward_->fused_linears();
}

std::vector<nn::ExpertParameter*> MixerLayer::expert_parameters() {
  if (mlp_) return {};
  return feed_forward_->expert_parameters();
}

std::vector<nn::Parameter*> MixerLayer::parameters() {
  std::vector<nn::Parameter*> list;
  mixer_->append_parameters(list);
  if (mlp_) {
    mlp_->append_parameters(list);
  } else {
    feed_forward_->append_parameters(list);
  }
  list.insert(list.end(), {&input_norm_.weight(), &mlp_norm_.weight()});
  return list;
}

at::Tensor MixerLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto first = input_norm_.forward_with_residual(x);
  const at::Tensor mixed = mixer_->add(first.normed, first.residual, context);
  const auto second = mlp_norm_.forward_with_residual(mixed);
  if (!mlp_) return feed_forward_->add_last(second.normed, second.residual, context);
  return mlp_->down_proj().forward_add_last(mlp_->gated(second.normed, context), second.residual,
                                            context);
}

}  // namespace strata::models
