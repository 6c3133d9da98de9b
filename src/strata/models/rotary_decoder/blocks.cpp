#include "strata/models/rotary_decoder/blocks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/gated_mlp.h"
#include "strata/nn/limited.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool has_bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = has_bias, .storage = storage};
}

std::string attention_path(const RotaryDecoderConfig& c, int64_t index) {
  return fmt::format("{}.{}.{}", c.layers_name, index, c.attention_name);
}

std::vector<nn::Linear> make_qkv(const RotaryDecoderConfig& c, const std::string& attention,
                                 at::ScalarType storage) {
  const int64_t of_q = c.num_attention_heads * c.head_dim,
                of_k = c.num_key_value_heads * c.head_dim;
  std::vector<nn::Linear> layers;
  const auto add = [&](const std::string& name, int64_t out) {
    layers.emplace_back(attention + "." + name, shape(c.hidden_size, out, c.input_bias, storage));
  };
  if (c.fused_parts > 0) {
    add(c.fused_name, of_q + 2 * of_k);
    return layers;
  }
  add("q_proj", of_q);
  add("k_proj", of_k);
  add("v_proj", of_k);
  return layers;
}

// q, k and v out of the one matrix' outputs, in which each part of the heads has q first.
std::vector<at::Tensor> split_parts(const at::Tensor& fused, const RotaryDecoderConfig& c) {
  const at::Tensor rows = fused.view({fused.size(0), c.fused_parts, 3, -1});
  const int64_t keys = c.values_come_last ? 1 : 2;
  const auto part = [&](int64_t i) { return rows.select(2, i).flatten(1).contiguous(); };
  return {part(0), part(keys), part(3 - keys)};
}

nn::HeadNormOptions head_norm(const RotaryDecoderConfig& c, int64_t heads) {
  return {.weights = *c.head_norms, .num_heads = heads, .head_dim = c.head_dim, .eps = c.norm_eps};
}

}  // namespace

RotaryDecoderLayer::RotaryDecoderLayer(const RotaryDecoderConfig& c, int64_t index,
                                       at::ScalarType storage, nn::Rope* rope)
    : config_(c),
      index_(index),
      path_(c.layers_name + "." + std::to_string(index)),
      rope_(rope),
      qkv_(make_qkv(c, attention_path(c, index), storage)),
      output_(attention_path(c, index) + "." + c.output_name,
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, c.output_bias, storage)),
      mlp_input_(path_ + ".mlp." + c.mlp_input_name,
                 shape(c.hidden_size, c.intermediate_size, c.mlp_bias, storage)),
      mlp_output_(path_ + ".mlp." + c.mlp_output_name,
                  shape(c.intermediate_size, c.hidden_size, c.mlp_bias, storage)),
      input_layernorm_(path_ + "." + c.norm_names[0], c.hidden_size, c.norm_eps, storage,
                       c.norm_affine) {
  if (c.head_norms) {
    const std::string attention = attention_path(c, index) + ".";
    q_norm_.emplace(attention + c.head_norm_names[0], head_norm(c, c.num_attention_heads), storage);
    k_norm_.emplace(attention + c.head_norm_names[1], head_norm(c, c.num_key_value_heads), storage);
  }
  if (c.has_gated_mlp) {
    mlp_gate_.emplace(path_ + ".mlp.gate_proj",
                      shape(c.hidden_size, c.intermediate_size, c.mlp_bias, storage));
  }
  if (!c.is_parallel) {
    mlp_layernorm_.emplace(path_ + "." + c.norm_names[1], c.hidden_size, c.norm_eps, storage,
                           c.norm_affine);
  }
}

std::vector<nn::Linear*> RotaryDecoderLayer::linears() {
  std::vector<nn::Linear*> list;
  for (nn::Linear& layer : qkv_) list.push_back(&layer);
  if (config_.queries_come_third) std::rotate(list.begin(), list.begin() + 1, list.end());
  list.push_back(&output_);
  if (mlp_gate_) list.push_back(&*mlp_gate_);
  list.insert(list.end(), {&mlp_input_, &mlp_output_});
  return list;
}

std::vector<nn::Parameter*> RotaryDecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  const std::vector<nn::Linear*> layers = linears();
  const auto mlp_begin = layers.begin() + std::ssize(qkv_) + 1;  // after attention's output
  if (config_.norms_come_first) input_layernorm_.append_parameters(list);
  for (auto layer = layers.begin(); layer != mlp_begin; ++layer) (*layer)->append_parameters(list);
  if (q_norm_) {
    q_norm_->append_parameters(list);
    k_norm_->append_parameters(list);
  }
  if (config_.norms_come_first && mlp_layernorm_) mlp_layernorm_->append_parameters(list);
  for (auto layer = mlp_begin; layer != layers.end(); ++layer) (*layer)->append_parameters(list);
  if (config_.norms_come_first) return list;
  input_layernorm_.append_parameters(list);
  if (mlp_layernorm_) mlp_layernorm_->append_parameters(list);
  return list;
}

std::vector<const nn::Linear*> RotaryDecoderLayer::readers_of_attention() const {
  std::vector<const nn::Linear*> list;
  for (const nn::Linear& layer : qkv_) list.push_back(&layer);
  return list;
}

std::vector<const nn::Linear*> RotaryDecoderLayer::readers_of_mlp() const {
  if (mlp_gate_) return {&*mlp_gate_, &mlp_input_};
  return {&mlp_input_};
}

at::Tensor RotaryDecoderLayer::add_attention(std::vector<at::Tensor> qkv,
                                             const at::Tensor& residual,
                                             const nn::ForwardContext& context) {
  if (config_.fused_parts > 0) qkv = split_parts(qkv[0], config_);
  if (q_norm_) {
    qkv[0] = q_norm_->forward(qkv[0]);
    qkv[1] = k_norm_->forward(qkv[1]);
  }
  if (const double limit = config_.qkv_limit; limit > 0) {
    for (at::Tensor& x : qkv) x = nn::limited(x, limit);
  }
  const auto layer = static_cast<size_t>(index_);
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_key_value_heads,
      .head_dim = config_.head_dim,
      .scale =
          config_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
      .layer = index_,
      .window = config_.windows.empty() ? 0 : config_.windows.at(layer),
      .rotates = rope_ != nullptr && (config_.rotates.empty() || config_.rotates.at(layer)),
      .dropout = config_.attention_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores)};
  const at::Tensor mixed =
      rope_ != nullptr ? nn::rotary_attention(qkv[0], qkv[1], qkv[2], *rope_, options, context)
                       : nn::attention(qkv[0], qkv[1], qkv[2], options, context);
  const double rate = config_.attention_output_dropout;
  // Side by side, the sum is read by the block's end alone.
  if (!config_.is_parallel && (!context.drops() || rate == 0)) {
    return output_.forward_add_once(mixed, residual, context);
  }
  return add_with_dropout(output_, mixed, residual,
                          {rate, dropout_place_id(index_, DropoutPlace::kAttention),
                           /*is_last=*/config_.is_parallel},
                          context);
}

at::Tensor RotaryDecoderLayer::add_mlp(const std::vector<at::Tensor>& hidden,
                                       const at::Tensor& residual,
                                       const nn::ForwardContext& context) {
  const nn::Remakable read = config_.has_gated_mlp ? nn::swiglu(hidden[0], hidden[1])
                                                   : nn::activate(hidden[0], config_.activation);
  return add_with_dropout(
      mlp_output_, read, residual,
      {config_.mlp_dropout, dropout_place_id(index_, DropoutPlace::kMlp), /*is_last=*/true},
      context);
}

at::Tensor RotaryDecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_layernorm_.forward_with_residual(x);
  std::vector<const nn::Linear*> readers = readers_of_attention();
  const size_t num_qkv = readers.size();
  if (config_.is_parallel) {
    // Both read one norm: it is kept, or made again, once.
    for (const nn::Linear* layer : readers_of_mlp()) readers.push_back(layer);
  }
  std::vector<at::Tensor> outputs = nn::linear_shared_input(readers, normed, context);
  const std::vector<at::Tensor> hidden(outputs.begin() + static_cast<int64_t>(num_qkv),
                                       outputs.end());
  outputs.resize(num_qkv);
  const at::Tensor sum = add_attention(std::move(outputs), residual, context);
  if (config_.is_parallel) return add_mlp(hidden, sum, context);
  const auto [next, same] = mlp_layernorm_->forward_with_residual(sum);
  return add_mlp(nn::linear_shared_input(readers_of_mlp(), next, context), same, context);
}

}  // namespace strata::models
