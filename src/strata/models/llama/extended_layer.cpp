#include "strata/models/llama/extended_layer.h"

#include <cmath>

#include "strata/models/residual_dropout.h"
#include "strata/nn/attention/own_rope_tables.h"
#include "strata/nn/attention/rotated.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

// [T, heads * head_dim], each head by itself.
at::Tensor norm_heads(nn::RmsNorm& norm, const at::Tensor& x) {
  return norm.forward(x.reshape({-1, norm.weight().shape()[0]})).view(x.sizes());
}

}  // namespace

ExtendedDecoderLayer::ExtendedDecoderLayer(const ExtendedConfig& config, int64_t index,
                                           at::ScalarType storage, nn::Rope& rope)
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
      mlp_(config.llama, path_ + ".mlp", storage),
      input_layernorm_(path_ + ".input_layernorm", config.llama.hidden_size,
                       config.llama.rms_norm_eps, storage),
      post_attention_layernorm_(path_ + ".post_attention_layernorm", config.llama.hidden_size,
                                config.llama.rms_norm_eps, storage) {
  if (!config.norms_turned_heads) return;
  q_norm_.emplace(path_ + ".self_attn.query_layernorm", config.llama.head_dim,
                  config.llama.rms_norm_eps, storage);
  k_norm_.emplace(path_ + ".self_attn.key_layernorm", config.llama.head_dim,
                  config.llama.rms_norm_eps, storage);
}

std::vector<nn::Linear*> ExtendedDecoderLayer::linears() {
  std::vector<nn::Linear*> list{&q_proj_, &k_proj_, &v_proj_, &o_proj_};
  for (nn::Linear* layer : mlp_.linears()) list.push_back(layer);
  return list;
}

std::vector<nn::Parameter*> ExtendedDecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) {
    layer->append_parameters(list);
  }
  if (q_norm_) list.insert(list.end(), {&q_norm_->weight(), &k_norm_->weight()});
  mlp_.append_parameters(list);
  list.insert(list.end(), {&input_layernorm_.weight(), &post_attention_layernorm_.weight()});
  append_prefix(list, index_);
  return list;
}

void ExtendedDecoderLayer::prepare(at::Tensor& q, at::Tensor& k,
                                   const nn::ForwardContext& context) {
  if (q_norm_) {
    const nn::RopeTables tables = nn::own_rope_tables(rope_, context);
    q = norm_heads(*q_norm_, nn::rotated(q, config_.llama.num_attention_heads, tables));
    k = norm_heads(*k_norm_, nn::rotated(k, config_.llama.num_key_value_heads, tables));
  }
  if (!config_.query_scale) return;
  // A factor of all channels may come before the rotation as well as behind it.
  const int64_t num_before = prefix() != nullptr ? prefix()->shape()[0] : 0;
  q = nn::scaled_by_position(q, *config_.query_scale, num_before, context);
}

nn::AttentionOptions ExtendedDecoderLayer::attention_options() const {
  const LlamaConfig& c = config_.llama;
  return {.num_heads = c.num_attention_heads,
          .num_kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)),
          .layer = index_,
          .window = c.windows.empty() ? 0 : c.windows.at(static_cast<size_t>(index_)),
          .prefix = prefix(),
          .rotates = !config_.norms_turned_heads,
          .projection = index_ == 0 ? projection() : nullptr,
          .dropout = c.attention_dropout,
          .place_id = dropout_place_id(index_, DropoutPlace::kScores)};
}

at::Tensor ExtendedDecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_layernorm_.forward_with_residual(x);
  auto qkv = nn::linear_shared_input({&q_proj_, &k_proj_, &v_proj_}, normed, context);
  prepare(qkv[0], qkv[1], context);
  const at::Tensor mixed =
      nn::rotary_attention(qkv[0], qkv[1], qkv[2], rope_, attention_options(), context);
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
  const auto [normed, residual] = post_attention_layernorm_.forward_with_residual(x);
  return add_with_dropout(
      mlp_.down_proj(), mlp_.gated(normed, context), residual,
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
