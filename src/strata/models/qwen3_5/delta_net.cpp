#include "strata/models/qwen3_5/delta_net.h"

#include <ATen/ATen.h>

#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/gated_mlp.h"
#include "strata/nn/linear_attention/causal_conv.h"
#include "strata/nn/linear_attention/decay.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .storage = storage};
}

}  // namespace

DeltaNet::DeltaNet(const Qwen35Config& config, int64_t index, at::ScalarType storage,
                   std::shared_ptr<nn::LaneTable> lanes)
    : DeltaNet(config, index, "model.layers." + std::to_string(index) + ".linear_attn.", storage,
               std::move(lanes)) {}

DeltaNet::DeltaNet(const Qwen35Config& c, int64_t index, const std::string& path,
                   at::ScalarType storage, std::shared_ptr<nn::LaneTable> lanes)
    : shape_(c.delta),
      index_(index),
      lanes_(std::move(lanes)),
      dt_bias_(path + "dt_bias", {c.delta.num_value_heads}, storage),
      log_rate_(path + "A_log", {c.delta.num_value_heads}, storage),
      conv_(path + "conv1d.weight",
            {2 * c.delta.key_channels() + c.delta.value_channels(), 1, c.conv_size}, storage),
      norm_(path + "norm", c.delta.value_dim, c.llama.rms_norm_eps, storage),
      out_proj_(path + "out_proj", shape(c.delta.value_channels(), c.llama.hidden_size, storage)) {
  const int64_t keys = c.delta.key_channels(), values = c.delta.value_channels();
  const auto add = [&](std::optional<nn::Linear>& layer, const char* name, int64_t out) {
    layer.emplace(path + name, shape(c.llama.hidden_size, out, storage));
  };
  if (c.has_fused_inputs) {
    add(qkvz_proj_, "in_proj_qkvz", 2 * keys + 2 * values);
    add(ba_proj_, "in_proj_ba", 2 * c.delta.num_value_heads);
    return;
  }
  add(qkv_proj_, "in_proj_qkv", 2 * keys + values);
  add(z_proj_, "in_proj_z", values);
  add(b_proj_, "in_proj_b", c.delta.num_value_heads);
  add(a_proj_, "in_proj_a", c.delta.num_value_heads);
}

std::vector<nn::Linear*> DeltaNet::linears() {
  if (qkvz_proj_) return {&*qkvz_proj_, &*ba_proj_, &out_proj_};
  return {&out_proj_, &*qkv_proj_, &*z_proj_, &*b_proj_, &*a_proj_};
}

void DeltaNet::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&dt_bias_, &log_rate_, &conv_});
  const auto add = [&](const nn::Linear& layer) { layer.append_parameters(list); };
  // The norm and the output stand before or after the inputs.
  if (qkvz_proj_) {
    add(*qkvz_proj_);
    add(*ba_proj_);
  }
  list.push_back(&norm_.weight());
  add(out_proj_);
  if (qkvz_proj_) return;
  for (const auto* layer : {&qkv_proj_, &z_proj_, &b_proj_, &a_proj_}) add(**layer);
}

bool DeltaNet::init_weight(const nn::Parameter& parameter, at::Tensor full,
                           at::Generator generator) const {
  if (&parameter == &dt_bias_ || &parameter == &norm_.weight()) {
    full.fill_(1.0);
  } else if (&parameter == &log_rate_) {
    full.uniform_(0.01, 16.0, std::move(generator)).log_();
  } else {
    return false;
  }
  return true;
}

DeltaNet::Inputs DeltaNet::project(const nn::Remakable& normed, const nn::ForwardContext& context) {
  if (!qkvz_proj_) {
    const auto in =
        nn::linear_shared_input({&*qkv_proj_, &*z_proj_, &*b_proj_, &*a_proj_}, normed, context);
    return {in[0], in[1], in[2], in[3]};
  }
  const auto in = nn::linear_shared_input({&*qkvz_proj_, &*ba_proj_}, normed, context);
  const int64_t num_tokens = in[0].size(0), heads = shape_.num_key_heads;
  const int64_t ratio = shape_.num_value_heads / heads;
  const auto qkvz = in[0]
                        .view({num_tokens, heads, -1})
                        .split_with_sizes({shape_.key_dim, shape_.key_dim, ratio * shape_.value_dim,
                                           ratio * shape_.value_dim},
                                          2);
  const auto flat = [&](const at::Tensor& x) { return x.reshape({num_tokens, -1}); };
  const auto ba = in[1].view({num_tokens, heads, 2 * ratio}).split(ratio, 2);
  return {at::cat({flat(qkvz[0]), flat(qkvz[1]), flat(qkvz[2])}, 1), flat(qkvz[3]).contiguous(),
          flat(ba[0]), flat(ba[1])};
}

at::Tensor DeltaNet::mix(const Inputs& in, const nn::ForwardContext& context) {
  const at::Tensor g = nn::decay(in.a, log_rate_, dt_bias_), beta = at::sigmoid(in.b);
  if (nn::KvCache* cache = context.generation.cache) {
    nn::KvCache::Layer& layer = cache->layers.at(static_cast<size_t>(index_));
    const at::Tensor mixed = nn::causal_conv_silu_after(layer.last_inputs, in.qkv, conv_);
    return nn::gated_delta_rule_after(layer.state, mixed, g, beta, shape_);
  }
  const at::Tensor mixed = nn::causal_conv_silu(in.qkv, conv_, *context.batch);
  return nn::gated_delta_rule(mixed, g, beta, shape_, lanes_->of(*context.batch),
                              context.pass.kept_attention);
}

at::Tensor DeltaNet::add(const nn::Remakable& normed, const at::Tensor& residual,
                         const nn::ForwardContext& context) {
  const Inputs in = project(normed, context);
  const at::Tensor mixed = mix(in, context);
  const at::Tensor gated = nn::swiglu(in.z.view({-1, shape_.value_dim}),
                                      norm_.forward(mixed.view({-1, shape_.value_dim})))
                               .value;
  return out_proj_.forward_add_once(gated.view(mixed.sizes()), residual, context);
}

}  // namespace strata::models
