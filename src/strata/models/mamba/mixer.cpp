#include "strata/models/mamba/mixer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/linear_attention/causal_conv.h"
#include "strata/nn/linear_attention/column_scales.h"
#include "strata/nn/linear_attention/silu_gate.h"
#include "strata/nn/linear_attention/time_steps.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

// What softplus makes steps of whose logarithms are spread evenly.
void draw_step_bias_(const at::Tensor& bias, const FirstSteps& first, at::Generator generator) {
  const at::Tensor steps = at::empty_like(bias, bias.options().dtype(at::kFloat));
  steps.uniform_(std::log(first.least), std::log(first.most), std::move(generator));
  steps.exp_().clamp_min_(first.floor);
  bias.copy_(steps + steps.neg().expm1_().neg_().log_());
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
      out_proj_(path + "out_proj", shape(c.shape.channels(), c.hidden_size, c.out_bias, storage)) {
  if (c.end != MambaEnd::kGateAlone) {
    norm_.emplace(path + "norm",
                  nn::GatedNorm::Options{.channels = c.shape.channels(),
                                         .num_groups = c.shape.num_groups,
                                         .eps = c.eps,
                                         .gate_comes_first = c.end == MambaEnd::kGateThenNorm},
                  storage);
  }
  if (c.conv_bias) {
    conv_bias_.emplace(path + "conv1d.bias", std::vector<int64_t>{c.conv_channels()}, storage);
  }
}

void MambaMixer::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&step_bias_, &log_rate_, &skip_, &conv_});
  if (conv_bias_) list.push_back(&*conv_bias_);
  in_proj_.append_parameters(list);
  if (norm_) list.push_back(&norm_->weight());
  out_proj_.append_parameters(list);
}

std::vector<nn::Linear*> MambaMixer::untargeted_linears() {
  if (!config_.out_is_no_target) return {};
  return {&out_proj_};
}

bool MambaMixer::is_out_weight(const nn::Parameter& parameter) const {
  return &parameter == &out_proj_.weight();
}

bool MambaMixer::init_weight(const nn::Parameter& parameter, at::Tensor full,
                             at::Generator generator) const {
  if (&parameter == &step_bias_ && config_.first_steps) {
    draw_step_bias_(full, *config_.first_steps, std::move(generator));
  } else if (&parameter == &step_bias_ || &parameter == &skip_ ||
             (norm_ && &parameter == &norm_->weight())) {
    full.fill_(1.0);
  } else if (&parameter == &log_rate_) {
    full.copy_(at::arange(1, config_.shape.num_heads + 1, at::kFloat).log_());
  } else if (is_out_weight(parameter) && config_.narrowed_by) {
    const auto inputs = static_cast<double>(config_.shape.channels());
    const double bound = 1.0 / std::sqrt(inputs * static_cast<double>(*config_.narrowed_by));
    full.uniform_(-bound, bound, std::move(generator));
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

at::Tensor MambaMixer::project(const nn::Remakable& normed,
                               const nn::ForwardContext& context) const {
  const at::Tensor projected = nn::linear_shared_input({&in_proj_}, normed, context)[0];
  if (config_.multipliers.empty()) return projected;
  const std::vector<double>& m = config_.multipliers;
  const int64_t channels = config_.shape.channels(), of_groups = config_.shape.group_channels();
  return nn::scale_columns(projected, {{channels, m.at(0)},
                                       {channels, m.at(1)},
                                       {of_groups, m.at(2)},
                                       {of_groups, m.at(3)},
                                       {config_.shape.num_heads, m.at(4)}});
}

at::Tensor MambaMixer::add(const nn::Remakable& normed, const at::Tensor& residual,
                           const nn::ForwardContext& context) {
  const auto in =
      project(normed, context)
          .split_with_sizes(
              {config_.shape.channels(), config_.conv_channels(), config_.shape.num_heads}, 1);
  const at::Tensor steps = nn::time_steps(in[2], step_bias_, config_.limits);
  const at::Tensor mixed = mix(in[1], steps, context);
  const at::Tensor gated = norm_ ? norm_->forward(mixed, in[0]) : nn::silu_gate(mixed, in[0]);
  return finish(out_proj_, gated, residual, config_.residual_multiplier, context);
}

}  // namespace strata::models
