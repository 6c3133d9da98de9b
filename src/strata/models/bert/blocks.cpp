#include "strata/models/bert/blocks.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/models/learned_positions.h"
#include "strata/models/residual_dropout.h"
#include "strata/nn/activation.h"
#include "strata/nn/added_bias.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/biased_attention.h"
#include "strata/nn/attention/disentangled_attention.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {
namespace {

nn::Linear make_linear(const std::string& path, int64_t in, int64_t out, at::ScalarType storage,
                       bool has_bias = true) {
  return {path, {.in_features = in, .out_features = out, .bias = has_bias, .storage = storage}};
}

nn::LayerNorm make_norm(const BertConfig& c, const std::string& path, at::ScalarType storage) {
  return {path, c.hidden_size, c.layer_norm_eps, storage};
}

// The vectors of relative positions of a layer, which drop values of them by themselves.
enum class VectorDropout { kTable };
uint64_t vectors_place_id(const BertConfig& c, int64_t layer) {
  // Behind the layers' places and the head's.
  return dropout_place_id(c.num_layers() + 1 + layer,
                          static_cast<DropoutPlace>(VectorDropout::kTable));
}

int64_t longest(const std::vector<int64_t>& offsets) {
  int64_t most = 0;
  for (size_t d = 1; d < offsets.size(); ++d) most = std::max(most, offsets[d] - offsets[d - 1]);
  return most;
}

// Places of the head, behind those of the layers.
enum class HeadDropout { kInput, kHidden };
uint64_t head_place_id(const BertConfig& c, HeadDropout place) {
  return dropout_place_id(c.num_layers(), static_cast<DropoutPlace>(place));
}

}  // namespace

BertEmbeddings::BertEmbeddings(const BertConfig& c, at::ScalarType storage)
    : config_(c),
      path_(c.names.body + ".embeddings"),
      tokens_(path_ + ".word_embeddings",
              std::make_shared<nn::Parameter>(path_ + ".word_embeddings.weight",
                                              std::vector<int64_t>{c.vocab_size, c.embedding_size},
                                              storage),
              c.pad_token_id),
      norm_(path_ + ".LayerNorm", c.embedding_size, c.layer_norm_eps, storage) {
  const auto add_table = [&](std::optional<nn::Parameter>& table, const std::string& path,
                             int64_t rows, int64_t channels) {
    table.emplace(path + ".weight", std::vector<int64_t>{rows, channels}, storage);
    table->set_embedding_table();
  };
  if (c.has_positions) {
    add_table(positions_, path_ + ".position_embeddings", c.max_position_embeddings,
              c.embedding_size);
  }
  if (c.type_vocab_size > 0) {
    add_table(types_, path_ + ".token_type_embeddings", c.type_vocab_size, c.embedding_size);
  }
  if (c.has_projection) {
    projection_.emplace(make_linear(c.names.body + "." + c.names.projection, c.embedding_size,
                                    c.hidden_size, storage));
  }
  const std::string encoder = c.names.body + ".encoder";
  if (c.relative_bias) {
    bias_.emplace(encoder + ".relative_attention_bias", *c.relative_bias, c.num_attention_heads,
                  storage);
  }
  if (!c.relative_positions) return;
  add_table(relatives_, encoder + ".rel_embeddings", 2 * c.relative_positions->vectors.span(),
            c.hidden_size);
  if (c.relative_positions->has_norm) {
    relatives_norm_.emplace(encoder + ".LayerNorm", c.hidden_size, c.layer_norm_eps, storage);
  }
}

std::vector<nn::Linear*> BertEmbeddings::linears() {
  return projection_ ? std::vector<nn::Linear*>{&*projection_} : std::vector<nn::Linear*>{};
}

std::vector<nn::Parameter*> BertEmbeddings::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  const bool has_positions_last = config_.has_positions_last;
  if (positions_ && !has_positions_last) list.push_back(&*positions_);
  if (types_) list.push_back(&*types_);
  norm_.append_parameters(list);
  if (has_positions_last) list.push_back(&*positions_);
  if (projection_) projection_->append_parameters(list);
  if (bias_) list.push_back(&bias_->weight());
  if (relatives_) list.push_back(&*relatives_);
  if (relatives_norm_) relatives_norm_->append_parameters(list);
  return list;
}

std::vector<Shelved> BertEmbeddings::makes() const {
  if (bias_) return {{kRelativePositions, bias_->weight().requires_grad()}};
  if (!relatives_) return {};
  // Layers' weights multiply what a frozen table gives, too.
  return {{kRelativePositions, true}};
}

void BertEmbeddings::shelve_positions(const at::Tensor& x, const nn::ForwardContext& context) {
  if (!bias_ && !relatives_) return;
  at::Tensor& shelved = context.pass.shelf->at(kRelativePositions);
  if (bias_) {
    shelved = bias_->table(x, longest(context.batch->offsets));
    return;
  }
  const at::Tensor rows = at::arange(relatives_->shape()[0], context.batch->ids.options());
  shelved = nn::embed(x, rows, *relatives_, std::nullopt);
  if (relatives_norm_) shelved = relatives_norm_->forward(shelved);
}

at::Tensor BertEmbeddings::type_rows(const nn::Batch& batch) const {
  if (!config_.reads_types || !batch.token_types.defined()) return at::zeros_like(batch.ids);
  if (config_.type_vocab_size > 1) return batch.token_types;
  throw ConfigError(
      "config.json: found type_vocab_size = 1 with rows of two texts, expected 2 token types; use "
      "a checkpoint that has them, or rows of one text");
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
  at::Tensor rows = nn::with_noise(tokens_.forward(x, batch.ids), context);
  if (types_) rows = rows + nn::embed(x, type_rows(batch), *types_, std::nullopt);
  if (positions_) {
    check_learned_positions(context, config_.num_positions(), "max_position_embeddings");
    const auto padding = config_.counts_from_padding ? config_.pad_token_id : std::nullopt;
    rows = rows + nn::embed(x, position_rows(batch), *positions_, padding);
  }
  shelve_positions(x, context);
  rows = nn::dropout(norm_.forward(rows), config_.hidden_dropout_prob, kFirstDropoutPlace, context);
  return projection_ ? projection_->forward(rows, context) : rows;
}

BertLayer::BertLayer(const BertConfig& c, const std::string& path, int64_t index,
                     at::ScalarType storage)
    : config_(c),
      index_(index),
      path_(fmt::format("{}.{}.{}", c.names.body, c.names.layers, path)),
      query_(make_linear(path_ + "." + c.names.query, c.hidden_size,
                         (c.has_one_projection ? 3 : 1) * c.hidden_size, storage,
                         /*has_bias=*/!c.has_one_projection)),
      attention_output_(make_linear(path_ + "." + c.names.attention_output, c.hidden_size,
                                    c.hidden_size, storage)),
      attention_norm_(make_norm(c, path_ + "." + c.names.attention_norm, storage)),
      up_(make_linear(path_ + "." + c.names.up, c.hidden_size, c.intermediate_size, storage)),
      down_(make_linear(path_ + "." + c.names.down, c.intermediate_size, c.hidden_size, storage)),
      output_norm_(make_norm(c, path_ + "." + c.names.output_norm, storage)) {
  const auto add = [&](std::optional<nn::Linear>& layer, const std::string& name,
                       bool has_bias = true) {
    layer.emplace(make_linear(path_ + "." + name, c.hidden_size, c.hidden_size, storage, has_bias));
  };
  if (c.has_one_projection) {
    const std::vector<int64_t> shape{c.hidden_size};
    query_bias_.emplace(path_ + ".attention.self.q_bias", shape, storage);
    value_bias_.emplace(path_ + ".attention.self.v_bias", shape, storage);
  } else {
    add(key_, c.names.key);
    add(value_, c.names.value);
  }
  if (!c.relative_positions || c.relative_positions->shares_layers) return;
  const BertPositionVectors& p = *c.relative_positions;
  const std::string attention = "attention.self.";
  if (p.are_keys) add(position_key_, attention + c.names.position_key, p.has_key_bias);
  if (p.are_queries) add(position_query_, attention + c.names.position_query);
}

std::vector<nn::Linear*> BertLayer::projections() {
  if (!key_) return {&query_};
  return {&query_, &*key_, &*value_};
}

std::vector<nn::Linear*> BertLayer::linears() {
  std::vector<nn::Linear*> list = projections();
  for (auto* layer : {&position_key_, &position_query_}) {
    if (layer->has_value()) list.push_back(&**layer);
  }
  list.insert(list.end(), {&attention_output_, &up_, &down_});
  return list;
}

std::vector<int> BertLayer::reads() const {
  if (!config_.relative_bias && !config_.relative_positions) return {};
  return {kRelativePositions};
}

std::vector<nn::Parameter*> BertLayer::parameters() {
  std::vector<nn::Parameter*> list;
  if (config_.has_output_norm_first) output_norm_.append_parameters(list);
  if (query_bias_) list.insert(list.end(), {&*query_bias_, &*value_bias_});
  for (const nn::Linear* layer : projections()) layer->append_parameters(list);
  for (const auto* layer : {&position_key_, &position_query_}) {
    if (layer->has_value()) (*layer)->append_parameters(list);
  }
  attention_output_.append_parameters(list);
  attention_norm_.append_parameters(list);
  up_.append_parameters(list);
  down_.append_parameters(list);
  if (!config_.has_output_norm_first) output_norm_.append_parameters(list);
  return list;
}

std::vector<at::Tensor> BertLayer::position_vectors(const nn::ForwardContext& context) {
  const at::Tensor& table = context.pass.shelf->at(kRelativePositions);
  // As rows of a text of their own, which no other has.
  nn::Batch of_vectors;
  of_vectors.token_keys = at::arange(-table.size(0), 0, context.batch->ids.options());
  nn::ForwardContext own = context;
  own.batch = &of_vectors;
  const BertPositionVectors& p = *config_.relative_positions;
  const at::Tensor dropped =
      nn::dropout(table, config_.hidden_dropout_prob, vectors_place_id(config_, index_), own);
  std::vector<const nn::Linear*> layers;
  if (p.are_keys) layers.push_back(p.shares_layers ? &*key_ : &*position_key_);
  if (p.are_queries) layers.push_back(p.shares_layers ? &query_ : &*position_query_);
  std::vector<at::Tensor> made = nn::linear_shared_input(layers, dropped, own);
  if (!p.are_keys) made.insert(made.begin(), at::Tensor());
  if (!p.are_queries) made.emplace_back();
  return made;
}

at::Tensor BertLayer::mix(const std::vector<at::Tensor>& qkv, const nn::ForwardContext& context) {
  const double scale =
      1.0 / std::sqrt(static_cast<double>(config_.head_dim() * config_.num_score_terms));
  const uint64_t place = dropout_place_id(index_, DropoutPlace::kScores);
  if (!config_.relative_bias && !config_.relative_positions) {
    return nn::attention(qkv[0], qkv[1], qkv[2],
                         {.num_heads = config_.num_attention_heads,
                          .num_kv_heads = config_.num_attention_heads,
                          .head_dim = config_.head_dim(),
                          .scale = scale,
                          .layer = index_,
                          .rotates = false,
                          .dropout = config_.attention_probs_dropout_prob,
                          .place_id = place,
                          .is_causal = false},
                         context);
  }
  const nn::BiasedAttentionShape shape{.num_heads = config_.num_attention_heads,
                                       .head_dim = config_.head_dim(),
                                       .offsets = context.batch->offsets,
                                       .key_offsets = context.batch->offsets,
                                       .scale = scale,
                                       .dropout = config_.attention_probs_dropout_prob,
                                       .place_id = place};
  if (config_.relative_bias) {
    return nn::biased_attention(qkv[0], qkv[1], qkv[2], context.pass.shelf->at(kRelativePositions),
                                shape, context);
  }
  const std::vector<at::Tensor> vectors = position_vectors(context);
  return nn::disentangled_attention(qkv[0], qkv[1], qkv[2], vectors[0], vectors[1],
                                    config_.relative_positions->vectors, shape, context);
}

std::vector<at::Tensor> BertLayer::project(const at::Tensor& x, const nn::ForwardContext& context) {
  if (key_) return nn::linear_shared_input({&query_, &*key_, &*value_}, x, context);
  const at::Tensor all = nn::linear_shared_input({&query_}, x, context)[0];
  const auto parts =
      all.view({all.size(0), config_.num_attention_heads, 3, config_.head_dim()}).unbind(2);
  const auto joined = [&](size_t i) { return parts[i].reshape({all.size(0), -1}).contiguous(); };
  return {nn::with_bias(joined(0), *query_bias_), joined(1),
          nn::with_bias(joined(2), *value_bias_)};
}

at::Tensor BertLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor mixed = mix(project(x, context), context);
  const double rate = config_.drops_attention_output ? config_.hidden_dropout_prob : 0;
  return attention_norm_.forward(
      add_with_dropout(attention_output_, mixed, x,
                       {rate, dropout_place_id(index_, DropoutPlace::kAttention), false}, context));
}

at::Tensor BertLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&up_}, x, context)[0];
  const double rate = config_.drops_mlp_output ? config_.hidden_dropout_prob : 0;
  return output_norm_.forward(
      add_with_dropout(down_, nn::activate(hidden, config_.hidden_act), x,
                       {rate, dropout_place_id(index_, DropoutPlace::kMlp), false}, context));
}

at::Tensor BertLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

at::Tensor BertLayerAgain::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (!context.drops()) return layer_.forward(x, context);
  // Its masks are others than the layer's own, as if its tokens were others.
  constexpr int kPlace = 48;  // above those of rows and positions
  nn::Batch own = *context.batch;
  own.token_keys = context.batch->token_keys + (index_ << kPlace);
  nn::ForwardContext again = context;
  again.batch = &own;
  return layer_.forward(x, again);
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
  const auto drop = [&](const at::Tensor& x, double rate, HeadDropout place) {
    return nn::dropout(x, rate, head_place_id(config_, place), context);
  };
  const at::Tensor hidden =
      dense_.forward(drop(rows, config_.head_input_dropout, HeadDropout::kInput), context);
  const at::Tensor active =
      config_.head_act ? nn::activate(hidden, *config_.head_act).value : at::tanh(hidden);
  return classifier_.forward(drop(active, config_.classifier_dropout, HeadDropout::kHidden),
                             context);
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
