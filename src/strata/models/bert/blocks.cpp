#include "strata/models/bert/blocks.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/models/learned_positions.h"
#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {
namespace {

nn::Linear make_linear(const std::string& path, int64_t in, int64_t out, at::ScalarType storage) {
  return {path, {.in_features = in, .out_features = out, .bias = true, .storage = storage}};
}

nn::LayerNorm make_norm(const BertConfig& c, const std::string& path, at::ScalarType storage) {
  return {path, c.hidden_size, c.layer_norm_eps, storage};
}

// Places of the head, behind those of the layers.
enum class HeadDropout { kInput, kHidden };
uint64_t head_place_id(const BertConfig& c, HeadDropout place) {
  return dropout_place_id(c.num_hidden_layers, static_cast<DropoutPlace>(place));
}

}  // namespace

BertEmbeddings::BertEmbeddings(const BertConfig& c, at::ScalarType storage)
    : config_(c),
      path_(c.names.body + ".embeddings"),
      tokens_(path_ + ".word_embeddings",
              std::make_shared<nn::Parameter>(path_ + ".word_embeddings.weight",
                                              std::vector<int64_t>{c.vocab_size, c.hidden_size},
                                              storage),
              c.pad_token_id),
      positions_(path_ + ".position_embeddings.weight", {c.max_position_embeddings, c.hidden_size},
                 storage),
      norm_(make_norm(c, path_ + ".LayerNorm", storage)) {
  positions_.set_embedding_table();
  if (c.type_vocab_size == 0) return;
  types_.emplace(path_ + ".token_type_embeddings.weight",
                 std::vector<int64_t>{c.type_vocab_size, c.hidden_size}, storage);
  types_->set_embedding_table();
}

std::vector<nn::Parameter*> BertEmbeddings::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  const bool has_positions_last = config_.counts_from_padding;
  if (!has_positions_last) list.push_back(&positions_);
  if (types_) list.push_back(&*types_);
  norm_.append_parameters(list);
  if (has_positions_last) list.push_back(&positions_);
  return list;
}

at::Tensor BertEmbeddings::type_rows(const nn::Batch& batch) const {
  if (!config_.reads_types || !batch.token_types.defined()) return at::zeros_like(batch.ids);
  if (config_.type_vocab_size > 1) return batch.token_types;
  throw ConfigError(
      "config.json: found type_vocab_size = 1 beside rows of two texts, expected 2 types of "
      "tokens; "
      "use a checkpoint that has them, or rows of one text");
}

at::Tensor BertEmbeddings::position_rows(const nn::Batch& batch) const {
  if (!config_.counts_from_padding) return batch.positions;
  const int64_t padding = *config_.pad_token_id;
  const at::Tensor is_token = batch.ids.ne(padding).to(at::kLong);
  const at::Tensor count = is_token.cumsum(0);
  const at::Tensor first = at::arange(batch.num_tokens(), batch.ids.options()) - batch.positions;
  const at::Tensor before = (count - is_token).index_select(0, first);
  return (count - before) * is_token + padding;
}

at::Tensor BertEmbeddings::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::Batch& batch = *context.batch;
  check_learned_positions(context, config_.num_positions(), "max_position_embeddings");
  at::Tensor rows = nn::with_noise(tokens_.forward(x, batch.ids), context);
  if (types_) rows = rows + nn::embed(x, type_rows(batch), *types_, std::nullopt);
  const auto padding = config_.counts_from_padding ? config_.pad_token_id : std::nullopt;
  rows = rows + nn::embed(x, position_rows(batch), positions_, padding);
  return nn::dropout(norm_.forward(rows), config_.hidden_dropout_prob, kFirstDropoutPlace, context);
}

BertLayer::BertLayer(const BertConfig& c, int64_t index, at::ScalarType storage)
    : config_(c),
      index_(index),
      path_(fmt::format("{}.{}.{}", c.names.body, c.names.layers, index)),
      query_(make_linear(path_ + "." + c.names.query, c.hidden_size, c.hidden_size, storage)),
      key_(make_linear(path_ + "." + c.names.key, c.hidden_size, c.hidden_size, storage)),
      value_(make_linear(path_ + "." + c.names.value, c.hidden_size, c.hidden_size, storage)),
      attention_output_(make_linear(path_ + "." + c.names.attention_output, c.hidden_size,
                                    c.hidden_size, storage)),
      attention_norm_(make_norm(c, path_ + "." + c.names.attention_norm, storage)),
      up_(make_linear(path_ + "." + c.names.up, c.hidden_size, c.intermediate_size, storage)),
      down_(make_linear(path_ + "." + c.names.down, c.intermediate_size, c.hidden_size, storage)),
      output_norm_(make_norm(c, path_ + "." + c.names.output_norm, storage)) {}

std::vector<nn::Linear*> BertLayer::linears() {
  return {&query_, &key_, &value_, &attention_output_, &up_, &down_};
}

std::vector<nn::Parameter*> BertLayer::parameters() {
  std::vector<nn::Parameter*> list;
  for (const nn::Linear* layer : {&query_, &key_, &value_, &attention_output_}) {
    layer->append_parameters(list);
  }
  attention_norm_.append_parameters(list);
  up_.append_parameters(list);
  down_.append_parameters(list);
  output_norm_.append_parameters(list);
  return list;
}

at::Tensor BertLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const std::vector<at::Tensor> qkv =
      nn::linear_shared_input({&query_, &key_, &value_}, x, context);
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_attention_heads,
      .head_dim = config_.head_dim(),
      .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim())),
      .layer = index_,
      .rotates = false,
      .dropout = config_.attention_probs_dropout_prob,
      .place_id = dropout_place_id(index_, DropoutPlace::kScores),
      .is_causal = false};
  const at::Tensor mixed = nn::attention(qkv[0], qkv[1], qkv[2], options, context);
  const double rate = config_.drops_attention_output ? config_.hidden_dropout_prob : 0;
  return attention_norm_.forward(
      add_with_dropout(attention_output_, mixed, x,
                       {rate, dropout_place_id(index_, DropoutPlace::kAttention), false}, context));
}

at::Tensor BertLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&up_}, x, context)[0];
  return output_norm_.forward(add_with_dropout(
      down_, nn::activate(hidden, config_.hidden_act), x,
      {config_.hidden_dropout_prob, dropout_place_id(index_, DropoutPlace::kMlp), false}, context));
}

at::Tensor BertLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

BertHead::BertHead(const BertConfig& c, at::ScalarType storage)
    : config_(c),
      dense_(make_linear(c.names.head_dense, c.hidden_size, c.hidden_size, storage)),
      classifier_(make_linear(c.names.classifier, c.hidden_size, c.num_labels, storage)) {}

std::vector<nn::Parameter*> BertHead::parameters() {
  std::vector<nn::Parameter*> list;
  dense_.append_parameters(list);
  classifier_.append_parameters(list);
  return list;
}

at::Tensor BertHead::read(const at::Tensor& rows, const nn::ForwardContext& context) {
  const auto drop = [&](const at::Tensor& x, HeadDropout place) {
    return nn::dropout(x, config_.classifier_dropout, head_place_id(config_, place), context);
  };
  const at::Tensor hidden =
      dense_.forward(config_.head_drops_input ? drop(rows, HeadDropout::kInput) : rows, context);
  const at::Tensor active = config_.head_is_relu ? at::relu(hidden) : at::tanh(hidden);
  return classifier_.forward(drop(active, HeadDropout::kHidden), context);
}

at::Tensor BertHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  nn::Batch of_rows;
  of_rows.token_keys = nn::document_rows(context.batch->token_keys, context);
  nn::ForwardContext own = context;
  own.batch = &of_rows;
  return nn::document_loss(read(nn::document_rows(x, context), own), context);
}

at::Tensor BertHead::logits(const at::Tensor& x) {
  return read(x, nn::ForwardContext{}).to(at::kFloat);
}

}  // namespace strata::models
