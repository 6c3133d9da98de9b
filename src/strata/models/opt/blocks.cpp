#include "strata/models/opt/blocks.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/models/learned_positions.h"
#include "strata/models/residual_dropout.h"
#include "strata/models/sinusoids.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {
namespace {

// Rows of the table of positions that come before that of a document's first token.
constexpr int64_t kUnusedPositions = 2;
constexpr double kNormEps = 1e-5;

nn::Linear::Options shape(const OptConfig& c, int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = c.enable_bias, .storage = storage};
}

nn::Linear make_attention_layer(const OptConfig& c, const std::string& path,
                                at::ScalarType storage) {
  return nn::Linear(path, shape(c, c.hidden_size, c.hidden_size, storage));
}

}  // namespace

OptEmbedding::OptEmbedding(const OptConfig& c, at::ScalarType storage)
    : config_(c),
      tokens_(c.body + ".embed_tokens",
              std::make_shared<nn::Parameter>(
                  c.body + ".embed_tokens.weight",
                  std::vector<int64_t>{c.vocab_size, c.word_embed_proj_dim}, storage),
              c.pad_token_id) {
  if (!c.has_sinusoids) {
    positions_.emplace(
        c.body + ".embed_positions.weight",
        std::vector<int64_t>{kUnusedPositions + c.max_position_embeddings, c.hidden_size}, storage);
    positions_->set_embedding_table();
  }
  if (c.has_projections()) {
    project_in_.emplace(c.body + ".project_in",
                        nn::Linear::Options{.in_features = c.word_embed_proj_dim,
                                            .out_features = c.hidden_size,
                                            .storage = storage});
  }
}

std::vector<nn::Parameter*> OptEmbedding::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  if (positions_) list.push_back(&*positions_);
  if (project_in_) project_in_->append_parameters(list);
  return list;
}

std::vector<nn::Linear*> OptEmbedding::linears() {
  std::vector<nn::Linear*> list;
  if (project_in_) list.push_back(&*project_in_);
  return list;
}

at::Tensor OptEmbedding::positions(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor places = context.batch->positions + kUnusedPositions;
  if (!positions_) {
    const at::Tensor rows = m2m_100_sinusoids(places, config_.hidden_size);
    // The row of the table that has the number of the padding token is zero.
    if (config_.pad_token_id) rows.mul_(places.ne(*config_.pad_token_id).unsqueeze(1));
    return rows;
  }
  check_learned_positions(context, positions_->shape()[0] - kUnusedPositions,
                          "max_position_embeddings");
  return nn::embed(x, places, *positions_, /*padding_id=*/std::nullopt);
}

at::Tensor OptEmbedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  at::Tensor rows = tokens_.forward(x, context.batch->ids);
  if (config_.embedding_scale != 1) rows = rows * config_.embedding_scale;
  rows = nn::with_noise(rows, context);
  if (project_in_) rows = project_in_->forward(rows, context);
  return nn::dropout(rows + positions(x, context).to(rows.scalar_type()), config_.embedding_dropout,
                     kFirstDropoutPlace, context);
}

OptLayer::OptLayer(const OptConfig& c, int64_t index, at::ScalarType storage)
    : config_(c),
      index_(index),
      path_(fmt::format("{}.layers.{}", c.body, index)),
      k_proj_(make_attention_layer(c, path_ + ".self_attn.k_proj", storage)),
      v_proj_(make_attention_layer(c, path_ + ".self_attn.v_proj", storage)),
      q_proj_(make_attention_layer(c, path_ + ".self_attn.q_proj", storage)),
      out_proj_(make_attention_layer(c, path_ + ".self_attn.out_proj", storage)),
      self_attn_layer_norm_(path_ + ".self_attn_layer_norm", c.hidden_size, kNormEps, storage,
                            c.norm_affine()),
      fc1_(path_ + ".fc1", shape(c, c.hidden_size, c.ffn_dim, storage)),
      fc2_(path_ + ".fc2", shape(c, c.ffn_dim, c.hidden_size, storage)),
      final_layer_norm_(path_ + ".final_layer_norm", c.hidden_size, kNormEps, storage,
                        c.norm_affine()) {}

std::vector<nn::Linear*> OptLayer::linears() {
  return {&k_proj_, &v_proj_, &q_proj_, &out_proj_, &fc1_, &fc2_};
}

std::vector<nn::Parameter*> OptLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : {&k_proj_, &v_proj_, &q_proj_, &out_proj_}) {
    layer->append_parameters(list);
  }
  self_attn_layer_norm_.append_parameters(list);
  fc1_.append_parameters(list);
  fc2_.append_parameters(list);
  final_layer_norm_.append_parameters(list);
  return list;
}

at::Tensor OptLayer::add_attention(const nn::Remakable& x, const at::Tensor& residual,
                                   const nn::ForwardContext& context) {
  const std::vector<at::Tensor> kvq =
      nn::linear_shared_input({&k_proj_, &v_proj_, &q_proj_}, x, context);
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_attention_heads,
      .head_dim = config_.head_dim(),
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim())),
      .layer = index_,
      .rotates = false,
      .dropout = config_.attention_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores)};
  const at::Tensor mixed = nn::attention(kvq[2], kvq[0], kvq[1], options, context);
  return add_with_dropout(
      out_proj_, mixed, residual,
      {config_.dropout, dropout_place_id(index_, DropoutPlace::kAttention), /*is_last=*/false},
      context);
}

at::Tensor OptLayer::add_mlp(const nn::Remakable& x, const at::Tensor& residual, bool is_last,
                             const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&fc1_}, x, context)[0];
  nn::Remakable active = nn::activate(hidden, config_.activation);
  if (context.drops() && config_.hidden_dropout > 0) {
    // The places of layers that the model does not have.
    const uint64_t place = dropout_place_id(config_.num_hidden_layers + index_, DropoutPlace::kMlp);
    active = nn::dropout(active.value, config_.hidden_dropout, place, context);
  }
  return add_with_dropout(fc2_, active, residual,
                          {config_.dropout, dropout_place_id(index_, DropoutPlace::kMlp), is_last},
                          context);
}

at::Tensor OptLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (!config_.do_layer_norm_before) {
    const at::Tensor y = self_attn_layer_norm_.forward(add_attention(x, x, context));
    return final_layer_norm_.forward(add_mlp(y, y, /*is_last=*/false, context));
  }
  const auto [normed, residual] = self_attn_layer_norm_.forward_with_residual(x);
  const auto [next, sum] =
      final_layer_norm_.forward_with_residual(add_attention(normed, residual, context));
  return add_mlp(next, sum, /*is_last=*/true, context);
}

}  // namespace strata::models
