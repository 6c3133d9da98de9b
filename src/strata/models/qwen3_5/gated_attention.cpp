#include "strata/models/qwen3_5/gated_attention.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/models/residual_dropout.h"
#include "strata/nn/attention/attention.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

GatedAttention::GatedAttention(const LlamaConfig& config, int64_t index, at::ScalarType storage,
                               nn::Rope& rope)
    : GatedAttention(config, index, "model.layers." + std::to_string(index) + ".self_attn.",
                     storage, rope) {}

GatedAttention::GatedAttention(const LlamaConfig& c, int64_t index, const std::string& path,
                               at::ScalarType storage, nn::Rope& rope)
    : config_(c),
      index_(index),
      rope_(rope),
      q_proj_(path + "q_proj",
              shape(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, c.input_bias, storage)),
      k_proj_(path + "k_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      v_proj_(path + "v_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      o_proj_(path + "o_proj",
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, c.output_bias, storage)),
      q_norm_(path + "q_norm", c.head_dim, c.rms_norm_eps, storage, c.norm_kind),
      k_norm_(path + "k_norm", c.head_dim, c.rms_norm_eps, storage, c.norm_kind) {}

void GatedAttention::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
  list.insert(list.end(), {&q_norm_.weight(), &k_norm_.weight()});
}

at::Tensor GatedAttention::normed_heads(nn::RmsNorm& norm, const at::Tensor& x) const {
  const int64_t num_tokens = x.size(0);
  return norm.forward(x.reshape({-1, config_.head_dim}).contiguous()).view({num_tokens, -1});
}

at::Tensor GatedAttention::add(const nn::Remakable& normed, const at::Tensor& residual,
                               const nn::ForwardContext& context) {
  const auto qkv = nn::linear_shared_input({&q_proj_, &k_proj_, &v_proj_}, normed, context);
  const int64_t num_tokens = qkv[0].size(0), num_heads = config_.num_attention_heads;
  // Query and gate of one head after the other.
  const auto halves = qkv[0].view({num_tokens, num_heads, 2, config_.head_dim}).unbind(2);
  const nn::AttentionOptions options{
      .num_heads = num_heads,
      .num_kv_heads = config_.num_key_value_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
      .layer = index_,
      .dropout = config_.attention_dropout,
      .place_id = kFirstDropoutPlace + static_cast<uint64_t>(index_)};
  const at::Tensor mixed =
      nn::rotary_attention(normed_heads(q_norm_, halves[0]), normed_heads(k_norm_, qkv[1]), qkv[2],
                           rope_, options, context);
  return o_proj_.forward_add_once(mixed * at::sigmoid(halves[1].reshape(mixed.sizes())), residual,
                                  context);
}

}  // namespace strata::models
