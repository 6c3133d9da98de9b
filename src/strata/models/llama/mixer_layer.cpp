#include "strata/models/llama/mixer_layer.h"

#include "strata/nn/scaled_add.h"

namespace strata::models {
namespace {

nn::RmsNorm norm_of(const LlamaConfig& c, const std::string& path, at::ScalarType storage) {
  return {path, c.hidden_size, c.rms_norm_eps, storage, c.norm_kind};
}

struct ProductPlace {
  double scale;  // of the product
  bool ends_block;
};

// residual + scale * layer(x).
at::Tensor add_product(const nn::Linear& layer, const nn::Remakable& x, const at::Tensor& residual,
                       const ProductPlace& place, const nn::ForwardContext& context) {
  const bool wants_output = !place.ends_block || context.pass.wants_output;
  if (place.scale == 1.0) {
    return place.ends_block ? layer.forward_add_last(x, residual, context)
                            : layer.forward_add_once(x, residual, context);
  }
  // As in Llama's layer: where the result is not wanted, nothing is remade.
  const at::Tensor y = wants_output ? nn::linear_shared_input({&layer}, x, context)[0]
                                    : layer.forward_last(x.value, context);
  return nn::add_scaled(residual, y, place.scale, wants_output);
}

}  // namespace

at::Tensor TokenMixer::finish(const nn::Linear& layer, const nn::Remakable& x,
                              const at::Tensor& residual, double scale,
                              const nn::ForwardContext& context) const {
  return add_product(layer, x, residual, {.scale = scale, .ends_block = ends_block_}, context);
}

MixerLayer::MixerLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                       std::unique_ptr<TokenMixer> mixer, std::unique_ptr<FeedForward> feed_forward,
                       ModuleOrder order)
    : layer_class_(c.layer_class),
      path_("model.layers." + std::to_string(index)),
      residual_multiplier_(c.residual_multiplier),
      order_(order),
      mixer_(std::move(mixer)),
      feed_forward_(std::move(feed_forward)),
      input_norm_(norm_of(c, path_ + "." + c.layer_norms.at(0).name, storage)),
      mlp_norm_(norm_of(c, path_ + "." + c.layer_norms.at(1).name, storage)) {
  if (feed_forward_ == nullptr) mlp_.emplace(c, path_ + ".mlp", storage);
}

std::vector<nn::Linear*> MixerLayer::linears() {
  std::vector<nn::Linear*> list = mixer_->linears();
  const std::vector<nn::Linear*> rest = mlp_ ? mlp_->linears() : feed_forward_->linears();
  list.insert(order_ == ModuleOrder::kMixerFirst ? list.end() : list.begin(), rest.begin(),
              rest.end());
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

std::vector<nn::Linear*> MixerLayer::nameless_experts() {
  if (mlp_) return {};
  return feed_forward_->nameless_experts();
}

void MixerLayer::append_mlp(std::vector<nn::Parameter*>& list) {
  if (mlp_) {
    mlp_->append_parameters(list);
  } else {
    feed_forward_->append_parameters(list);
  }
}

void MixerLayer::append_norms(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&input_norm_.weight(), &mlp_norm_.weight()});
}

std::vector<nn::Parameter*> MixerLayer::parameters() {
  std::vector<nn::Parameter*> list;
  switch (order_) {
    case ModuleOrder::kMixerFirst:
      mixer_->append_parameters(list);
      append_mlp(list);
      append_norms(list);
      break;
    case ModuleOrder::kMixerLast:
      append_norms(list);
      append_mlp(list);
      mixer_->append_parameters(list);
      break;
    case ModuleOrder::kMlpNormsMixer:
      append_mlp(list);
      append_norms(list);
      mixer_->append_parameters(list);
      break;
    case ModuleOrder::kMlpMixerNorms:
      append_mlp(list);
      mixer_->append_parameters(list);
      append_norms(list);
      break;
  }
  return list;
}

at::Tensor MixerLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto first = input_norm_.forward_with_residual(x);
  const at::Tensor mixed = mixer_->add(first.normed, first.residual, context);
  const auto second = mlp_norm_.forward_with_residual(mixed);
  if (!mlp_) return feed_forward_->add_last(second.normed, second.residual, context);
  return add_product(mlp_->down_proj(), mlp_->gated(second.normed, context), second.residual,
                     {.scale = residual_multiplier_, .ends_block = true}, context);
}

}  // namespace strata::models
