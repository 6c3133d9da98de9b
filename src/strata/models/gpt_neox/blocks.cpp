#include "strata/models/gpt_neox/blocks.h"

#include <cmath>

#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool has_bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = has_bias, .storage = storage};
}

}  // namespace

GptNeoXLayer::GptNeoXLayer(const GptNeoXConfig& c, int64_t index, at::ScalarType storage,
                           nn::Rope& rope)
    : config_(c),
      index_(index),
      path_("gpt_neox.layers." + std::to_string(index)),
      rope_(rope),
      input_layernorm_(path_ + ".input_layernorm", c.hidden_size, c.layer_norm_eps, storage),
      post_attention_layernorm_(path_ + ".post_attention_layernorm", c.hidden_size,
                                c.layer_norm_eps, storage),
      query_key_value_(path_ + ".attention.query_key_value",
                       shape(c.hidden_size, 3 * c.hidden_size, c.attention_bias, storage)),
      dense_(path_ + ".attention.dense",
             shape(c.hidden_size, c.hidden_size, c.attention_bias, storage)),
      dense_h_to_4h_(path_ + ".mlp.dense_h_to_4h",
                     shape(c.hidden_size, c.intermediate_size, /*has_bias=*/true, storage)),
      dense_4h_to_h_(path_ + ".mlp.dense_4h_to_h",
                     shape(c.intermediate_size, c.hidden_size, /*has_bias=*/true, storage)) {}

std::vector<nn::Linear*> GptNeoXLayer::linears() {
  return {&query_key_value_, &dense_, &dense_h_to_4h_, &dense_4h_to_h_};
}

std::vector<nn::Parameter*> GptNeoXLayer::parameters() {
  std::vector<nn::Parameter*> list;
  input_layernorm_.append_parameters(list);
  post_attention_layernorm_.append_parameters(list);
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
  return list;
}

at::Tensor GptNeoXLayer::attend(const nn::Remakable& normed, const nn::ForwardContext& context) {
  const at::Tensor qkv = nn::linear_shared_input({&query_key_value_}, normed, context)[0];
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_attention_heads,
      .head_dim = config_.head_dim(),
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim())),
      .layer = index_,
      .dropout = config_.attention_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores),
      .interleaved = true};
  return nn::fused_rotary_attention(qkv, rope_, options, context);
}

at::Tensor GptNeoXLayer::add_attention(const at::Tensor& mixed, const at::Tensor& residual,
                                       const nn::ForwardContext& context) {
  // Side by side, the sum is read by the block's end alone.
  return add_with_dropout(
      dense_, mixed, residual,
      {config_.hidden_dropout, dropout_place_id(index_, DropoutPlace::kAttention),
       /*is_last=*/config_.use_parallel_residual},
      context);
}

at::Tensor GptNeoXLayer::add_mlp(const nn::Remakable& normed, const at::Tensor& residual,
                                 const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&dense_h_to_4h_}, normed, context)[0];
  return add_with_dropout(
      dense_4h_to_h_, nn::activate(hidden, config_.activation), residual,
      {config_.hidden_dropout, dropout_place_id(index_, DropoutPlace::kMlp), /*is_last=*/true},
      context);
}

at::Tensor GptNeoXLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_layernorm_.forward_with_residual(x);
  const at::Tensor mixed = attend(normed, context);
  if (config_.use_parallel_residual) {
    // Both norms are of the block's input.
    const auto [also_normed, same] = post_attention_layernorm_.forward_with_residual(residual);
    return add_mlp(also_normed, add_attention(mixed, same, context), context);
  }
  const auto [next, sum] =
      post_attention_layernorm_.forward_with_residual(add_attention(mixed, residual, context));
  return add_mlp(next, sum, context);
}

}  // namespace strata::models
