#include "strata/models/falcon/blocks.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/dropout.h"
#include "strata/nn/limited.h"

namespace strata::models {
namespace {

nn::Linear make_layer(const FalconConfig& c, const std::string& path, int64_t in, int64_t out,
                      at::ScalarType storage) {
  return nn::Linear(
      path, {.in_features = in, .out_features = out, .bias = c.has_biases, .storage = storage});
}

int64_t fused_size(const FalconConfig& c) {
  return (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim();
}

// What attention reads and what its result joins.
struct Branches {
  nn::Remakable normed;
  at::Tensor residual;
};

Branches branches_of(nn::LayerNorm& norm, const at::Tensor& x, bool adds_to_norm) {
  if (adds_to_norm) {
    const at::Tensor normed = norm.forward(x);
    return {normed, normed};
  }
  auto [normed, residual] = norm.forward_with_residual(x);
  return {normed, residual};
}

}  // namespace

FalconLayer::FalconLayer(const FalconConfig& c, int64_t index, at::ScalarType storage,
                         FalconPositions& positions)
    : config_(c),
      index_(index),
      path_(c.names.layers + "." + std::to_string(index)),
      positions_(positions),
      query_key_value_(make_layer(c, path_ + "." + c.names.query_key_value, c.hidden_size,
                                  fused_size(c), storage)),
      dense_(make_layer(c, path_ + "." + c.names.dense, c.hidden_size, c.hidden_size, storage)),
      dense_h_to_4h_(make_layer(c, path_ + "." + c.names.mlp_input, c.hidden_size,
                                c.intermediate_size, storage)),
      dense_4h_to_h_(make_layer(c, path_ + "." + c.names.mlp_output, c.intermediate_size,
                                c.hidden_size, storage)),
      attention_norm_(path_ + "." + (c.norms == FalconNorms::kTwo ? "ln_attn" : c.names.norms[0]),
                      c.hidden_size, c.layer_norm_eps, storage, c.norm_affine) {
  if (c.norms == FalconNorms::kOne) return;
  mlp_norm_.emplace(path_ + "." + (c.norms == FalconNorms::kTwo ? "ln_mlp" : c.names.norms[1]),
                    c.hidden_size, c.layer_norm_eps, storage, c.norm_affine);
}

std::vector<nn::Linear*> FalconLayer::linears() {
  return {&query_key_value_, &dense_, &dense_h_to_4h_, &dense_4h_to_h_};
}

std::vector<nn::Parameter*> FalconLayer::parameters() {
  std::vector<nn::Parameter*> list;
  if (config_.norms_come_first) attention_norm_.append_parameters(list);
  query_key_value_.append_parameters(list);
  dense_.append_parameters(list);
  if (config_.norms_come_first) mlp_norm_->append_parameters(list);
  dense_h_to_4h_.append_parameters(list);
  dense_4h_to_h_.append_parameters(list);
  if (config_.norms_come_first) return list;
  // Falcon makes the later norm first.
  if (config_.norms == FalconNorms::kOneByOne) mlp_norm_->append_parameters(list);
  attention_norm_.append_parameters(list);
  if (config_.norms == FalconNorms::kTwo) mlp_norm_->append_parameters(list);
  return list;
}

at::Tensor FalconLayer::attend(const at::Tensor& fused, const nn::ForwardContext& context) {
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const int64_t head_dim = config_.head_dim();
  const double limit = config_.qkv_limit;
  const at::Tensor qkv = limit > 0 ? nn::limited(fused, limit) : fused;
  nn::AttentionOptions options{
      .num_heads = heads,
      .num_kv_heads = kv_heads,
      .head_dim = head_dim,
      .scale = config_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))),
      .layer = index_,
      .rotates = positions_.rope.has_value(),
      .dropout = config_.score_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores),
      .interleaved = heads == kv_heads && config_.heads == FalconHeads::kOneBehindAnother};
  if (positions_.alibi) options.bias = positions_.alibi->table(context);
  if (!positions_.rope) return nn::fused_attention(qkv, options, context);
  if (kv_heads == 1 || options.interleaved) {
    return nn::fused_rotary_attention(qkv, *positions_.rope, options, context);
  }
  // Each head of k and v stands after the heads of q that share it.
  const std::vector<at::Tensor> parts =
      qkv.view({qkv.size(0), kv_heads, heads / kv_heads + 2, head_dim})
          .split_with_sizes({heads / kv_heads, 1, 1}, /*dim=*/2);
  return nn::rotary_attention(parts[0].flatten(1), parts[1].flatten(1), parts[2].flatten(1),
                              *positions_.rope, options, context);
}

at::Tensor FalconLayer::forward_side_by_side(const at::Tensor& x,
                                             const nn::ForwardContext& context) {
  const auto [normed, residual] = attention_norm_.forward_with_residual(x);
  std::vector<at::Tensor> outputs;
  at::Tensor kept = residual;
  if (mlp_norm_) {
    const auto [also_normed, same] = mlp_norm_->forward_with_residual(residual);
    outputs = nn::linear_shared_input({&query_key_value_}, normed, context);
    outputs.push_back(nn::linear_shared_input({&dense_h_to_4h_}, also_normed, context)[0]);
    kept = same;
  } else {
    outputs = nn::linear_shared_input({&query_key_value_, &dense_h_to_4h_}, normed, context);
  }
  const at::Tensor mixed = attend(outputs[0], context);
  const nn::Remakable hidden = nn::activate(outputs[1], config_.activation);
  const double rate = config_.hidden_dropout;
  if (!context.drops() || rate == 0) {
    const at::Tensor sum = dense_.forward_add_last(mixed, kept, context);
    return dense_4h_to_h_.forward_add_last(hidden, sum, context);
  }
  // One mask for both.
  const at::Tensor added =
      dense_4h_to_h_.forward_add_last(hidden, dense_.forward_last(mixed, context), context);
  return nn::add_dropout(kept, added, rate, dropout_place_id(index_, DropoutPlace::kMlp), context,
                         context.pass.wants_output);
}

at::Tensor FalconLayer::forward_one_by_one(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = branches_of(attention_norm_, x, config_.adds_to_norms);
  const at::Tensor qkv = nn::linear_shared_input({&query_key_value_}, normed, context)[0];
  const double rate = config_.attention_output_dropout;
  const at::Tensor mixed = attend(qkv, context);
  const at::Tensor sum =
      !context.drops() || rate == 0
          ? dense_.forward_add_once(mixed, residual, context)
          : add_with_dropout(dense_, mixed, residual,
                             {rate, dropout_place_id(index_, DropoutPlace::kAttention),
                              /*is_last=*/false},
                             context);
  const auto [next, same] = branches_of(*mlp_norm_, sum, config_.adds_to_norms);
  const at::Tensor hidden = nn::linear_shared_input({&dense_h_to_4h_}, next, context)[0];
  return add_with_dropout(
      dense_4h_to_h_, nn::activate(hidden, config_.activation), same,
      {config_.hidden_dropout, dropout_place_id(index_, DropoutPlace::kMlp), /*is_last=*/true},
      context);
}

at::Tensor FalconLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return is_parallel() ? forward_side_by_side(x, context) : forward_one_by_one(x, context);
}

}  // namespace strata::models
