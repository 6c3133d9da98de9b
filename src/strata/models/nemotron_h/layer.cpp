#include "strata/models/nemotron_h/layer.h"

#include <utility>

namespace strata::models {

NemotronLayer::NemotronLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                             std::unique_ptr<TokenMixer> mixer,
                             std::unique_ptr<FeedForward> feed_forward)
    : layer_class_(c.layer_class),
      path_("model.layers." + std::to_string(index)),
      norm_(path_ + ".norm", c.hidden_size, c.rms_norm_eps, storage, c.norm_kind),
      mixer_(std::move(mixer)),
      feed_forward_(std::move(feed_forward)) {
  if (mixer_ != nullptr) mixer_->end_block();
}

std::vector<nn::Linear*> NemotronLayer::linears() {
  return mixer_ != nullptr ? mixer_->linears() : feed_forward_->linears();
}

std::vector<std::vector<nn::Linear*>> NemotronLayer::fused_linears() {
  if (feed_forward_ == nullptr) return {};
  return feed_forward_->fused_linears();
}

std::vector<nn::Linear*> NemotronLayer::nameless_experts() {
  if (feed_forward_ == nullptr) return {};
  return feed_forward_->nameless_experts();
}

std::vector<nn::ExpertParameter*> NemotronLayer::expert_parameters() {
  if (feed_forward_ == nullptr) return {};
  return feed_forward_->expert_parameters();
}

std::vector<nn::Linear*> NemotronLayer::untargeted_linears() {
  if (mixer_ == nullptr) return {};
  return mixer_->untargeted_linears();
}

std::vector<nn::Parameter*> NemotronLayer::parameters() {
  std::vector<nn::Parameter*> list{&norm_.weight()};
  mixer_ != nullptr ? mixer_->append_parameters(list) : feed_forward_->append_parameters(list);
  return list;
}

at::Tensor NemotronLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto branches = norm_.forward_with_residual(x);
  if (mixer_ != nullptr) return mixer_->add(branches.normed, branches.residual, context);
  return feed_forward_->add_last(branches.normed, branches.residual, context);
}

bool NemotronLayer::init_weight(const nn::Parameter& parameter, at::Tensor full,
                                at::Generator generator) const {
  return mixer_ != nullptr && mixer_->init_weight(parameter, std::move(full), std::move(generator));
}

}  // namespace strata::models
