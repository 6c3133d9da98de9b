#include "strata/models/glm/blocks.h"

#include <cmath>

#include "strata/nn/attention.h"
#include "strata/nn/gated_mlp.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

GlmDecoderLayer::GlmDecoderLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                                 nn::Rope& rope)
    : config_(c),
      index_(index),
      path_("model.layers." + std::to_string(index)),
      rope_(rope),
      q_proj_(path_ + ".self_attn.q_proj",
              shape(c.hidden_size, c.num_attention_heads * c.head_dim, c.input_bias, storage)),
      k_proj_(path_ + ".self_attn.k_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      v_proj_(path_ + ".self_attn.v_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      o_proj_(path_ + ".self_attn.o_proj",
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, /*bias=*/false, storage)),
      gate_up_proj_(path_ + ".mlp.gate_up_proj",
                    shape(c.hidden_size, 2 * c.intermediate_size, /*bias=*/false, storage)),
      down_proj_(path_ + ".mlp.down_proj",
                 shape(c.intermediate_size, c.hidden_size, /*bias=*/false, storage)),
      input_layernorm_(path_ + ".input_layernorm", c.hidden_size, c.rms_norm_eps, storage),
      post_attention_layernorm_(path_ + ".post_attention_layernorm", c.hidden_size, c.rms_norm_eps,
                                storage) {
  if (!c.output_norms) return;
  attention_output_norm_.emplace(path_ + ".post_self_attn_layernorm", c.hidden_size, c.rms_norm_eps,
                                 storage);
  mlp_output_norm_.emplace(path_ + ".post_mlp_layernorm", c.hidden_size, c.rms_norm_eps, storage);
}

std::vector<nn::Linear*> GlmDecoderLayer::linears() {
  return {&q_proj_, &k_proj_, &v_proj_, &o_proj_, &gate_up_proj_, &down_proj_};
}

std::vector<nn::Parameter*> GlmDecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
  list.insert(list.end(), {&input_layernorm_.weight(), &post_attention_layernorm_.weight()});
  for (auto* norm : {&attention_output_norm_, &mlp_output_norm_}) {
    if (*norm) list.push_back(&(*norm)->weight());
  }
  append_prefix(list, index_);
  return list;
}

at::Tensor GlmDecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_layernorm_.forward_with_residual(x);
  const auto qkv = nn::linear_shared_input({&q_proj_, &k_proj_, &v_proj_}, normed, context);
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_key_value_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
      .layer = index_,
      .prefix = prefix(),
      .projection = index_ == 0 ? projection() : nullptr,
      .dropout = config_.attention_dropout,
      // Beside those of the adapters' layers, which count from 0.
      .place_id = (uint64_t{1} << 32) + static_cast<uint64_t>(index_)};
  const at::Tensor mixed = nn::rotary_attention(qkv[0], qkv[1], qkv[2], rope_, options, context);
  if (!attention_output_norm_) return o_proj_.forward_add(mixed, residual, context);
  return residual + attention_output_norm_->forward(o_proj_.forward(mixed, context));
}

at::Tensor GlmDecoderLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = post_attention_layernorm_.forward_with_residual(x);
  const at::Tensor gate_up = nn::linear_shared_input({&gate_up_proj_}, normed, context)[0];
  const nn::Remakable gated = nn::swiglu_of_halves(gate_up);
  if (!mlp_output_norm_) return down_proj_.forward_add_last(gated, residual, context);
  return residual +
         mlp_output_norm_->forward(nn::linear_shared_input({&down_proj_}, gated, context)[0]);
}

at::Tensor GlmDecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

}  // namespace strata::models
