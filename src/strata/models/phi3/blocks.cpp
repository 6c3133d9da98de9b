#include "strata/models/phi3/blocks.h"

#include <cmath>

#include "strata/nn/attention/attention.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .storage = storage};
}

}  // namespace

Phi3DecoderLayer::Phi3DecoderLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                                   nn::Rope& rope)
    : config_(c),
      index_(index),
      path_("model.layers." + std::to_string(index)),
      rope_(rope),
      o_proj_(path_ + ".self_attn.o_proj",
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, storage)),
      qkv_proj_(path_ + ".self_attn.qkv_proj",
                shape(c.hidden_size,
                      (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim, storage)),
      mlp_(c, path_ + ".mlp", storage),
      input_layernorm_(path_ + ".input_layernorm", c.hidden_size, c.rms_norm_eps, storage),
      post_attention_layernorm_(path_ + ".post_attention_layernorm", c.hidden_size, c.rms_norm_eps,
                                storage) {}

std::vector<nn::Linear*> Phi3DecoderLayer::linears() {
  std::vector<nn::Linear*> list{&o_proj_, &qkv_proj_};
  for (nn::Linear* layer : mlp_.linears()) list.push_back(layer);
  return list;
}

std::vector<nn::Parameter*> Phi3DecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
  list.push_back(&input_layernorm_.weight());
  list.push_back(&post_attention_layernorm_.weight());
  append_prefix(list, index_);
  return list;
}

at::Tensor Phi3DecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_layernorm_.forward_with_residual(x);
  const at::Tensor qkv = nn::linear_shared_input({&qkv_proj_}, normed, context)[0];
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_key_value_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
      .layer = index_,
      .window = config_.windows.empty() ? 0 : config_.windows.at(static_cast<size_t>(index_)),
      .prefix = prefix(),
      .projection = index_ == 0 ? projection() : nullptr};
  const at::Tensor mixed = nn::fused_rotary_attention(qkv, rope_, options, context);
  return o_proj_.forward_add_once(mixed, residual, context);
}

at::Tensor Phi3DecoderLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = post_attention_layernorm_.forward_with_residual(x);
  return mlp_.down_proj().forward_add_last(mlp_.gated(normed, context), residual, context);
}

at::Tensor Phi3DecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

}  // namespace strata::models
