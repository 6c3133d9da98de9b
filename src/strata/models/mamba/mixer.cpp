#include "strata/models/mamba/mixer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/linear_attention/causal_conv.h"
#include "strata/nn/linear_attention/time_steps.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

MambaMixer::MambaMixer(const MambaConfig& config, int64_t index, at::ScalarType storage,
                       std::shared_ptr<nn::LaneTable> lanes)
    : MambaMixer(config, index, fmt::format("model.layers.{}.{}.", index, config.module), storage,
                 std::move(lanes)) {}

MambaMixer::MambaMixer(const MambaConfig& c, int64_t index, const std::string& path,
                       at::ScalarType storage, std::shared_ptr<nn::LaneTable> lanes)
    : config_(c),
      index_(index),
      lanes_(std::move(lanes)),
      step_bias_(path + "dt_bias", {c.shape.num_heads}, storage),
      log_rate_(path + "A_log", {c.shape.num_heads}, storage),
      skip_(path + "D", {c.shape.num_heads}, storage),
      conv_(path + "conv1d.weight", {c.conv_channels(), 1, c.conv_size}, storage),
      in_proj_(path + "in_proj",
               shape(c.hidden_size, c.shape.channels() + c.conv_channels() + c.shape.num_heads,
                     c.bias, storage)),
      norm_(path + "norm",
            {.channels = c.shape.channels(), .num_groups = c.shape.num_groups, .eps = c.eps},
            storage),
      out_proj_(path + "out_proj", shape(c.shape.channels(), c.hidden_size, c.bias, storage)) {
  if (c.conv_bias) {
    conv_bias_.emplace(path + "conv1d.bias", std::vector<int64_t>{c.conv_channels()}, storage);
  }
}

void MambaMixer::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&step_bias_, &log_rate_, &skip_, &conv_});
  if (conv_bias_) list.push_back(&*conv_bias_);
  in_proj_.append_parameters(list);
  list.push_back(&norm_.weight());
  out_proj_.append_parameters(list);
}

bool MambaMixer::init_weight(const nn::Parameter& parameter, at::Tensor full,
                             at::Generator /*generator*/) const {
  if (&parameter == &step_bias_ || &parameter == &skip_ || &parameter == &norm_.weight()) {
    full.fill_(1.0);
  } else if (&parameter == &log_rate_) {
    full.copy_(at::arange(1, config_.shape.num_heads + 1, at::kFloat).log_());
  } else {
    return false;
  }
  return true;
}

at::Tensor MambaMixer::mix(const at::Tensor& xbc, const at::Tensor& steps,
                           const nn::ForwardContext& context) {
  const nn::StateSpaceWeights weights{.log_rate = &log_rate_, .skip = &skip_};
  nn::Parameter* bias = conv_bias_ ? &*conv_bias_ : nullptr;
  if (nn::KvCache* cache = context.generation.cache) {
    nn::KvCache::Layer& layer = cache->layers.at(static_cast<size_t>(index_));
    const at::Tensor mixed = nn::causal_conv_silu_after(layer.last_inputs, xbc, conv_, bias);
    return nn::state_space_after(layer.state, mixed, steps, weights, config_.shape);
  }
  const at::Tensor mixed = nn::causal_conv_silu(xbc, conv_, *context.batch, bias);
  return nn::state_space(mixed, steps, weights, config_.shape, lanes_->of(*context.batch),
                         context.pass.kept_attention);
}

at::Tensor MambaMixer::add(const nn::Remakable& normed, const at::Tensor& residual,
                           const nn::ForwardContext& context) {
  const auto in = nn::linear_shared_input({&in_proj_}, normed, context)[0].split_with_sizes(
      {config_.shape.channels(), config_.conv_channels(), config_.shape.num_heads}, 1);
  const at::Tensor steps = nn::time_steps(in[2], step_bias_, config_.limits);
  const at::Tensor gated = norm_.forward(mix(in[1], steps, context), in[0]);
  return add_mixed(out_proj_, gated, residual, config_.residual_multiplier, context);
}

}  // namespace strata::models
