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
      out_proj_(path + "out_proj", shape(c.delta.value_channels(), c.llama.hidden_size, storage)),
      qkv_proj_(path + "in_proj_qkv",
                shape(c.llama.hidden_size, 2 * c.delta.key_channels() + c.delta.value_channels(),
                      storage)),
      z_proj_(path + "in_proj_z", shape(c.llama.hidden_size, c.delta.value_channels(), storage)),
      b_proj_(path + "in_proj_b", shape(c.llama.hidden_size, c.delta.num_value_heads, storage)),
      a_proj_(path + "in_proj_a", shape(c.llama.hidden_size, c.delta.num_value_heads, storage)) {}

std::vector<nn::Linear*> DeltaNet::linears() {
  return {&out_proj_, &qkv_proj_, &z_proj_, &b_proj_, &a_proj_};
}

void DeltaNet::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&dt_bias_, &log_rate_, &conv_, &norm_.weight()});
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
}

at::Tensor DeltaNet::mix(const at::Tensor& qkv, const at::Tensor& b, const at::Tensor& a,
                         const nn::ForwardContext& context) {
  const at::Tensor g = nn::decay(a, log_rate_, dt_bias_), beta = at::sigmoid(b);
  if (nn::KvCache* cache = context.generation.cache) {
    nn::KvCache::Layer& layer = cache->layers.at(static_cast<size_t>(index_));
    const at::Tensor mixed = nn::causal_conv_silu_after(layer.last_inputs, qkv, conv_);
    return nn::gated_delta_rule_after(layer.state, mixed, g, beta, shape_);
  }
  const at::Tensor mixed = nn::causal_conv_silu(qkv, conv_, *context.batch);
  return nn::gated_delta_rule(mixed, g, beta, shape_, lanes_->of(*context.batch),
                              context.pass.kept_attention);
}

at::Tensor DeltaNet::add(const nn::Remakable& normed, const at::Tensor& residual,
                         const nn::ForwardContext& context) {
  const auto in =
      nn::linear_shared_input({&qkv_proj_, &z_proj_, &b_proj_, &a_proj_}, normed, context);
  const at::Tensor mixed = mix(in[0], in[2], in[3], context);
  const at::Tensor gated = nn::swiglu(in[1].view({-1, shape_.value_dim}),
                                      norm_.forward(mixed.view({-1, shape_.value_dim})))
                               .value;
  return out_proj_.forward_add_once(gated.view(mixed.sizes()), residual, context);
}

}  // namespace strata::models
