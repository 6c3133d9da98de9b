#include "strata/models/gpt2/blocks.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(const Gpt2Config& c, int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in,
          .out_features = out,
          .bias = true,
          .storage = storage,
          .transposed = c.has_conv1d};
}

nn::LayerNorm make_norm(const Gpt2Config& c, const std::string& path, at::ScalarType storage) {
  return nn::LayerNorm(path, c.n_embd, c.layer_norm_epsilon, storage);
}

}  // namespace

Gpt2Block::Gpt2Block(const Gpt2Config& c, int64_t index, at::ScalarType storage)
    : config_(c),
      index_(index),
      path_("transformer.h." + std::to_string(index)),
      ln_1_(make_norm(c, path_ + ".ln_1", storage)),
      c_attn_(path_ + ".attn.c_attn",
              shape(c, c.n_embd, c.n_embd + 2 * c.num_kv_heads() * c.head_dim(), storage)),
      attention_c_proj_(path_ + ".attn.c_proj", shape(c, c.n_embd, c.n_embd, storage)),
      ln_2_(make_norm(c, path_ + ".ln_2", storage)),
      c_fc_(path_ + ".mlp.c_fc", shape(c, c.n_embd, c.n_inner, storage)),
      mlp_c_proj_(path_ + ".mlp.c_proj", shape(c, c.n_inner, c.n_embd, storage)) {}

std::vector<nn::Linear*> Gpt2Block::linears() {
  return {&c_attn_, &attention_c_proj_, &c_fc_, &mlp_c_proj_};
}

std::vector<nn::Parameter*> Gpt2Block::parameters() {
  std::vector<nn::Parameter*> list;
  if (!config_.norms_come_last) ln_1_.append_parameters(list);
  c_attn_.append_parameters(list);
  attention_c_proj_.append_parameters(list);
  if (config_.norms_come_last) ln_1_.append_parameters(list);
  if (!config_.norms_come_last) ln_2_.append_parameters(list);
  c_fc_.append_parameters(list);
  mlp_c_proj_.append_parameters(list);
  if (config_.norms_come_last) ln_2_.append_parameters(list);
  return list;
}

at::Tensor Gpt2Block::add_attention(const nn::Remakable& x, const at::Tensor& residual,
                                    const nn::ForwardContext& context) {
  const at::Tensor qkv = nn::linear_shared_input({&c_attn_}, x, context)[0];
  const auto channels = static_cast<double>(config_.head_dim());
  double scale = config_.scale_attn_weights ? 1.0 / std::sqrt(channels) : 1.0;
  if (config_.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(index_ + 1);
  const nn::AttentionOptions options{.num_heads = config_.n_head,
                                     .num_kv_heads = config_.num_kv_heads(),
                                     .head_dim = config_.head_dim(),
                                     .scale = scale,
                                     .layer = index_,
                                     .rotates = false,
                                     .dropout = config_.attn_pdrop,
                                     .place_id = dropout_place_id(index_, DropoutPlace::kScores),
                                     .interleaved = config_.interleaved};
  const at::Tensor mixed = nn::fused_attention(qkv, options, context);
  return add_with_dropout(
      attention_c_proj_, mixed, residual,
      {config_.resid_pdrop, dropout_place_id(index_, DropoutPlace::kAttention), /*is_last=*/false},
      context);
}

at::Tensor Gpt2Block::add_mlp(const nn::Remakable& x, const at::Tensor& residual,
                              const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&c_fc_}, x, context)[0];
  return add_with_dropout(mlp_c_proj_, nn::activate(hidden, config_.activation), residual,
                          {config_.resid_pdrop, dropout_place_id(index_, DropoutPlace::kMlp),
                           /*is_last=*/!config_.norms_come_last},
                          context);
}

at::Tensor Gpt2Block::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (config_.norms_come_last) {
    const at::Tensor y = ln_1_.forward(add_attention(x, x, context));
    return ln_2_.forward(add_mlp(y, y, context));
  }
  const auto [normed, residual] = ln_1_.forward_with_residual(x);
  const auto [next, sum] = ln_2_.forward_with_residual(add_attention(normed, residual, context));
  return add_mlp(next, sum, context);
}

}  // namespace strata::models
