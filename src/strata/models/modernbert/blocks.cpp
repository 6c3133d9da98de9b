#include "strata/models/modernbert/blocks.h"

#include <cmath>
#include <memory>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {
namespace {

nn::LayerNormAffine affine_of(const ModernBertConfig& c) {
  return c.norm_bias ? nn::LayerNormAffine::kWeightAndBias : nn::LayerNormAffine::kWeight;
}

nn::LayerNorm make_norm(const ModernBertConfig& c, const std::string& path,
                        at::ScalarType storage) {
  return {path, c.hidden_size, c.norm_eps, storage, affine_of(c)};
}

nn::Linear make_linear(const std::string& path, int64_t in, int64_t out, bool has_bias,
                       at::ScalarType storage) {
  return {path, {.in_features = in, .out_features = out, .bias = has_bias, .storage = storage}};
}

}  // namespace

ModernBertEmbeddings::ModernBertEmbeddings(const ModernBertConfig& c, at::ScalarType storage)
    : dropout_(c.embedding_dropout),
      tokens_("model.embeddings.tok_embeddings",
              std::make_shared<nn::Parameter>("model.embeddings.tok_embeddings.weight",
                                              std::vector<int64_t>{c.vocab_size, c.hidden_size},
                                              storage),
              c.pad_token_id),
      norm_(make_norm(c, "model.embeddings.norm", storage)) {}

std::vector<nn::Parameter*> ModernBertEmbeddings::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  norm_.append_parameters(list);
  return list;
}

at::Tensor ModernBertEmbeddings::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor rows = nn::with_noise(tokens_.forward(x, context.batch->ids), context);
  return nn::dropout(norm_.forward(rows), dropout_, kFirstDropoutPlace, context);
}

ModernBertLayer::ModernBertLayer(const ModernBertConfig& c, int64_t index, at::ScalarType storage,
                                 nn::Rope& rope)
    : config_(c),
      index_(index),
      path_(fmt::format("model.layers.{}", index)),
      rope_(rope),
      qkv_(make_linear(path_ + ".attn.Wqkv", c.hidden_size, 3 * c.hidden_size, c.attention_bias,
                       storage)),
      attention_output_(
          make_linear(path_ + ".attn.Wo", c.hidden_size, c.hidden_size, c.attention_bias, storage)),
      mlp_norm_(make_norm(c, path_ + ".mlp_norm", storage)),
      up_(make_linear(path_ + ".mlp.Wi", c.hidden_size, 2 * c.intermediate_size, c.mlp_bias,
                      storage)),
      down_(
          make_linear(path_ + ".mlp.Wo", c.intermediate_size, c.hidden_size, c.mlp_bias, storage)) {
  if (index == 0) return;
  attention_norm_.emplace(path_ + ".attn_norm", c.hidden_size, c.norm_eps, storage, affine_of(c));
}

std::vector<nn::Linear*> ModernBertLayer::linears() {
  return {&qkv_, &attention_output_, &up_, &down_};
}

std::vector<nn::Parameter*> ModernBertLayer::parameters() {
  std::vector<nn::Parameter*> list;
  if (attention_norm_) attention_norm_->append_parameters(list);
  for (const nn::Linear* layer : {&qkv_, &attention_output_}) layer->append_parameters(list);
  mlp_norm_.append_parameters(list);
  for (const nn::Linear* layer : {&up_, &down_}) layer->append_parameters(list);
  return list;
}

at::Tensor ModernBertLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  nn::LayerNorm::Branches branches{x, x};
  if (attention_norm_) branches = attention_norm_->forward_with_residual(x);
  const at::Tensor qkv = nn::linear_shared_input({&qkv_}, branches.normed, context)[0];
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_attention_heads,
      .head_dim = config_.head_dim(),
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim())),
      .layer = index_,
      .window = config_.has_window[static_cast<size_t>(index_)] ? config_.window : 0,
      .dropout = config_.attention_dropout,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores),
      .is_causal = false};
  const at::Tensor mixed = nn::fused_rotary_attention(qkv, rope_, options, context);
  return add_with_dropout(
      attention_output_, mixed, branches.residual,
      {config_.attention_dropout, dropout_place_id(index_, DropoutPlace::kAttention), false},
      context);
}

at::Tensor ModernBertLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = mlp_norm_.forward_with_residual(x);
  const at::Tensor both = nn::linear_shared_input({&up_}, normed, context)[0];
  const int64_t half = config_.intermediate_size;
  const at::Tensor hidden =
      nn::activate(both.narrow(1, 0, half), config_.hidden_act).value * both.narrow(1, half, half);
  const at::Tensor dropped = nn::dropout(hidden, config_.mlp_dropout,
                                         dropout_place_id(index_, DropoutPlace::kMlp), context);
  return down_.forward_add_last(dropped, residual, context);
}

at::Tensor ModernBertLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

ModernBertHead::ModernBertHead(const ModernBertConfig& c, at::ScalarType storage)
    : config_(c),
      final_norm_(make_norm(c, "model.final_norm", storage)),
      dense_(make_linear("head.dense", c.hidden_size, c.hidden_size, c.classifier_bias, storage)),
      norm_(make_norm(c, "head.norm", storage)),
      classifier_(
          make_linear("classifier", c.hidden_size, c.num_labels, /*has_bias=*/true, storage)) {}

std::vector<nn::Parameter*> ModernBertHead::parameters() {
  std::vector<nn::Parameter*> list;
  final_norm_.append_parameters(list);
  dense_.append_parameters(list);
  norm_.append_parameters(list);
  classifier_.append_parameters(list);
  return list;
}

at::Tensor ModernBertHead::read(const at::Tensor& rows, const nn::ForwardContext& context) {
  const at::Tensor hidden =
      nn::activate(dense_.forward(rows, context), config_.classifier_act).value;
  const uint64_t place = dropout_place_id(config_.num_hidden_layers, static_cast<DropoutPlace>(0));
  return classifier_.forward(
      nn::dropout(norm_.forward(hidden), config_.classifier_dropout, place, context), context);
}

at::Tensor ModernBertHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  nn::Batch of_rows;
  of_rows.token_keys = nn::document_rows(context.batch->token_keys, context);
  nn::ForwardContext own = context;
  own.batch = &of_rows;
  const at::Tensor rows = config_.reads_mean ? nn::document_means(final_norm_.forward(x), context)
                                             : final_norm_.forward(nn::document_rows(x, context));
  return nn::document_loss(read(rows, own), context);
}

at::Tensor ModernBertHead::logits(const at::Tensor& x) {
  return read(final_norm_.forward(x), nn::ForwardContext{}).to(at::kFloat);
}

}  // namespace strata::models
