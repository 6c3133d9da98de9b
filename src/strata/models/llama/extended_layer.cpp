#include "strata/models/llama/extended_layer.h"

#include <cmath>

#include "strata/models/residual_dropout.h"
#include "strata/nn/attention/own_rope_tables.h"
#include "strata/nn/attention/rotated.h"
#include "strata/nn/limited.h"
#include "strata/nn/scaled_add.h"
#include "strata/nn/unit_norm.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

// [T, heads * head_dim], each head by itself or all at once, as many channels as the norm has.
at::Tensor norm_heads(nn::RmsNorm& norm, const at::Tensor& x) {
  return norm.forward(x.contiguous());
}

}  // namespace

ExtendedDecoderLayer::ExtendedDecoderLayer(const ExtendedConfig& config, int64_t index,
                                           at::ScalarType storage, nn::Rope& rope,
                                           std::unique_ptr<FeedForward> feed_forward)
    : config_(config),
      index_(index),
      path_("model.layers." + std::to_string(index)),
      rope_(rope),
      q_proj_(
          path_ + ".self_attn.q_proj",
          shape(config.llama.hidden_size, config.llama.num_attention_heads * config.llama.head_dim,
                config.llama.input_bias, storage)),
      k_proj_(
          path_ + ".self_attn.k_proj",
          shape(config.llama.hidden_size, config.llama.num_key_value_heads * config.llama.head_dim,
                config.llama.input_bias, storage)),
      v_proj_(
          path_ + ".self_attn.v_proj",
          shape(config.llama.hidden_size, config.llama.num_key_value_heads * config.llama.head_dim,
                config.llama.input_bias, storage)),
      o_proj_(path_ + ".self_attn.o_proj",
              shape(config.llama.num_attention_heads * config.llama.head_dim,
                    config.llama.hidden_size, config.llama.output_bias, storage)),
      feed_forward_(std::move(feed_forward)) {
  const LlamaConfig& c = config.llama;
  if (!c.unit_norms) {
    input_layernorm_.emplace(path_ + ".input_layernorm", c.hidden_size, c.rms_norm_eps, storage);
    post_attention_layernorm_.emplace(path_ + ".post_attention_layernorm", c.hidden_size,
                                      c.rms_norm_eps, storage);
  }
  if (feed_forward_ == nullptr) mlp_.emplace(c, path_ + ".mlp", storage);
  const auto add = [&](std::optional<nn::RmsNorm>& norm, const char* name, int64_t num_heads) {
    norm.emplace(path_ + ".self_attn." + name, num_heads * c.head_dim, c.rms_norm_eps, storage);
  };
  if (config.norms_turned_heads) {
    add(q_norm_, "query_layernorm", 1);
    add(k_norm_, "key_layernorm", 1);
  } else if (c.row_norms) {
    add(q_norm_, "q_norm", c.num_attention_heads);
    add(k_norm_, "k_norm", c.num_key_value_heads);
  }
}

std::vector<nn::Linear*> ExtendedDecoderLayer::linears() {
  std::vector<nn::Linear*> list{&q_proj_, &k_proj_, &v_proj_, &o_proj_};
  for (nn::Linear* layer : mlp_ ? mlp_->linears() : feed_forward_->linears()) list.push_back(layer);
  return list;
}

std::vector<std::vector<nn::Linear*>> ExtendedDecoderLayer::fused_linears() {
  if (mlp_) return {};
  return feed_forward_->fused_linears();
}

std::vector<nn::ExpertParameter*> ExtendedDecoderLayer::expert_parameters() {
  if (mlp_) return {};
  return feed_forward_->expert_parameters();
}

std::vector<nn::Parameter*> ExtendedDecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) {
    layer->append_parameters(list);
  }
  if (q_norm_) list.insert(list.end(), {&q_norm_->weight(), &k_norm_->weight()});
  const auto append_norms = [&] {
    if (config_.llama.unit_norms) return;
    list.insert(list.end(), {&input_layernorm_->weight(), &post_attention_layernorm_->weight()});
  };
  if (config_.norms_come_first) append_norms();
  if (mlp_) {
    mlp_->append_parameters(list);
  } else {
    feed_forward_->append_parameters(list);
  }
  if (!config_.norms_come_first) append_norms();
  append_prefix(list, index_);
  return list;
}

bool ExtendedDecoderLayer::init_weight(const nn::Parameter& parameter, at::Tensor full,
                                       at::Generator generator) const {
  if (!config_.output_range || &parameter != &o_proj_.weight()) return false;
  full.normal_(0.0, *config_.output_range, std::move(generator));
  return true;
}

nn::RmsNorm::Branches ExtendedDecoderLayer::branches_of(std::optional<nn::RmsNorm>& norm,
                                                        const at::Tensor& x) const {
  if (norm) return norm->forward_with_residual(x);
  return {nn::remakable_unit_norm(x, config_.llama.rms_norm_eps), x};
}

void ExtendedDecoderLayer::prepare(std::vector<at::Tensor>& qkv,
                                   const nn::ForwardContext& context) {
  if (turns_first()) {
    nn::RopeTables tables = nn::own_rope_tables(rope_, context);
    if (config_.turns_back) tables.sin = tables.sin.neg();
    qkv[0] = nn::rotated(qkv[0], config_.llama.num_attention_heads, tables);
    qkv[1] = nn::rotated(qkv[1], config_.llama.num_key_value_heads, tables);
  }
  if (config_.turned_unit_norms) {
    const LlamaConfig& c = config_.llama;
    for (const size_t i : {0, 1}) {
      qkv[i] =
          nn::unit_rms_norm(qkv[i].reshape({-1, c.head_dim}), c.rms_norm_eps).view(qkv[i].sizes());
    }
  }
  if (q_norm_) {
    qkv[0] = norm_heads(*q_norm_, qkv[0]);
    qkv[1] = norm_heads(*k_norm_, qkv[1]);
  }
  if (const double limit = config_.qkv_limit; limit > 0) {
    for (at::Tensor& x : qkv) x = nn::limited(x, limit);
  }
  if (!config_.query_scale) return;
  // A factor of all channels may come before the rotation as well as after it.
  const int64_t num_before = prefix() != nullptr ? prefix()->shape()[0] : 0;
  qkv[0] = nn::scaled_by_position(qkv[0], *config_.query_scale, num_before, context);
}

nn::AttentionOptions ExtendedDecoderLayer::attention_options() const {
  const LlamaConfig& c = config_.llama;
  return {
      .num_heads = c.num_attention_heads,
      .num_kv_heads = c.num_key_value_heads,
      .head_dim = c.head_dim,
      .scale = c.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(c.head_dim))),
      .layer = index_,
      .window = c.windows.empty() ? 0 : c.windows.at(static_cast<size_t>(index_)),
      .chunk = config_.chunk,
      .prefix = prefix(),
      .rotates = !turns_first() && (c.rotates.empty() || c.rotates.at(static_cast<size_t>(index_))),
      .projection = index_ == 0 ? projection() : nullptr,
      .dropout = c.attention_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores)};
}

at::Tensor ExtendedDecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = branches_of(input_layernorm_, x);
  auto qkv = nn::linear_shared_input({&q_proj_, &k_proj_, &v_proj_}, normed, context);
  prepare(qkv, context);
  const at::Tensor mixed =
      nn::rotary_attention(qkv[0], qkv[1], qkv[2], rope_, attention_options(), context);
  if (const double scale = config_.llama.residual_multiplier; scale != 1.0) {
    return nn::add_scaled(residual, o_proj_.forward(mixed, context), scale, /*wants_output=*/true);
  }
  if (!context.drops() || config_.residual_dropout == 0) {
    return o_proj_.forward_add_once(mixed, residual, context);
  }
  return add_with_dropout(
      o_proj_, mixed, residual,
      {config_.residual_dropout, dropout_place_id(index_, DropoutPlace::kAttention),
       /*is_last=*/false},
      context);
}

at::Tensor ExtendedDecoderLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = branches_of(post_attention_layernorm_, x);
  if (!mlp_) return feed_forward_->add_last(normed, residual, context);
  return add_with_dropout(
      mlp_->down_proj(), mlp_->gated(normed, context), residual,
      {config_.residual_dropout, dropout_place_id(index_, DropoutPlace::kMlp), /*is_last=*/true},
      context);
}

at::Tensor ExtendedDecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

MakeDecoderLayer make_extended_layers(const ExtendedConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    ExtendedConfig own = config;
    own.llama = llama;
    return std::make_unique<ExtendedDecoderLayer>(own, index, storage, rope);
  };
}

}  // namespace strata::models
