#include "strata/models/bart/blocks.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/models/residual_dropout.h"
#include "strata/models/sinusoids.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/decoder_cache.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedding.h"
#include "strata/nn/low_rank.h"
#include "strata/ops/dropout_keys.h"

namespace strata::models {
namespace {

constexpr double kNormEpsilon = 1e-5;  // whatever the file says
// Rows of the table of positions that no token has.
constexpr int64_t kFirstPosition = 2;

std::string path_of(Stack stack) {
  return stack == Stack::kEncoder ? "model.encoder" : "model.decoder";
}

nn::Linear make_linear(const std::string& path, int64_t in, int64_t out, at::ScalarType storage) {
  return {path, {.in_features = in, .out_features = out, .bias = true, .storage = storage}};
}

nn::Linear make_lm_head(const BartConfig& c, at::ScalarType storage,
                        std::shared_ptr<nn::Parameter> tied) {
  if (tied != nullptr) return nn::Linear("lm_head", std::move(tied));
  return nn::Linear(
      "lm_head",
      {.in_features = c.d_model, .out_features = c.vocab_size, .bias = false, .storage = storage});
}

void check_positions(const nn::ForwardContext& context, Stack stack, int64_t most) {
  const std::vector<int64_t>& offsets = context.batch->offsets;
  int64_t longest = 0;
  for (size_t d = 1; d < offsets.size(); ++d) {
    longest = std::max(longest, offsets[d] - offsets[d - 1]);
  }
  const bool is_decoder = stack == Stack::kDecoder;
  const nn::DecoderCache* cache = context.generation.decoder_cache;
  if (is_decoder && cache != nullptr) longest += cache->length;
  if (longest <= most) return;
  throw ConfigError(
      "{}: found {} of {} tokens, expected at most {}, for which the model has positions "
      "(max_position_embeddings); lower it",
      !is_decoder        ? "max_source_length"
      : cache == nullptr ? "max_target_length"
                         : "generation_max_length",
      !is_decoder        ? "a source"
      : cache == nullptr ? "a target"
                         : "an answer",
      longest, most);
}

// 1, 2, ... for the tokens of each document where `is_token`, 0 elsewhere. `positions`: in their
// document.
at::Tensor counted_without(const at::Tensor& is_token, const at::Tensor& positions) {
  const at::Tensor count = is_token.cumsum(0);
  const at::Tensor first = at::arange(is_token.size(0), positions.options()) - positions;
  const at::Tensor before = (count - is_token).index_select(0, first);
  return (count - before) * is_token;
}

}  // namespace

BartEmbedding::BartEmbedding(const BartConfig& config, Stack stack,
                             std::shared_ptr<nn::Parameter> shared, at::ScalarType storage,
                             uint64_t place_id)
    : config_(config),
      stack_(stack),
      path_(path_of(stack)),
      shared_(std::move(shared)),
      place_id_(place_id) {
  shared_->set_embedding_table();
  if (config.positions == BartPositions::kLearned) {
    positions_.emplace(
        path_ + ".embed_positions.weight",
        std::vector<int64_t>{config.max_position_embeddings + kFirstPosition, config.d_model},
        storage);
    positions_->set_embedding_table();
  }
  if (config.has_embedding_norm) {
    norm_.emplace(path_ + ".layernorm_embedding", config.d_model, kNormEpsilon, storage);
  }
}

std::vector<nn::Parameter*> BartEmbedding::parameters() {
  std::vector<nn::Parameter*> list{shared_.get()};
  if (positions_) list.push_back(&*positions_);
  if (norm_) norm_->append_parameters(list);
  return list;
}

at::Tensor BartEmbedding::positions(const at::Tensor& x, const nn::ForwardContext& own) {
  const nn::Batch& batch = *own.batch;
  if (config_.positions != BartPositions::kM2m100) {
    check_positions(own, stack_, config_.max_position_embeddings);
    return positions_ ? nn::embed(x, batch.positions + kFirstPosition, *positions_, std::nullopt)
                      : marian_sinusoids(batch.positions, config_.d_model);
  }
  const at::Tensor is_token = batch.ids.ne(*config_.pad_token_id);
  const bool is_answer = stack_ == Stack::kDecoder && own.generation.decoder_cache != nullptr;
  const at::Tensor places = is_answer ? (batch.positions + 1) * is_token.to(at::kLong)
                                      : counted_without(is_token.to(at::kLong), batch.positions);
  return m2m_100_sinusoids(places + *config_.pad_token_id, config_.d_model)
      .mul_(is_token.unsqueeze(1));
}

at::Tensor BartEmbedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::ForwardContext own = stack_ == Stack::kEncoder ? of_source(context) : context;
  at::Tensor rows = nn::embed(x, own.batch->ids, *shared_, config_.pad_token_id);
  if (config_.scale_embedding) rows = rows * std::sqrt(static_cast<double>(config_.d_model));
  rows = rows + positions(x, own).to(rows.scalar_type());
  return nn::dropout(norm_ ? norm_->forward(rows) : rows, config_.dropout, place_id_, own);
}

BartAttention::BartAttention(const std::string& path, const std::string& norm_path, int64_t d_model,
                             at::ScalarType storage, DropoutPlaces& places)
    : k(make_linear(path + ".k_proj", d_model, d_model, storage)),
      v(make_linear(path + ".v_proj", d_model, d_model, storage)),
      q(make_linear(path + ".q_proj", d_model, d_model, storage)),
      out(make_linear(path + ".out_proj", d_model, d_model, storage)),
      norm(norm_path, d_model, kNormEpsilon, storage),
      scores_place(places.next()),
      output_place(places.next()) {}

void BartAttention::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Linear* layer : {&k, &v, &q, &out}) layer->append_parameters(list);
  norm.append_parameters(list);
}

BartLayer::BartLayer(const BartConfig& c, Stack stack, int64_t index, at::ScalarType storage,
                     DropoutPlaces& places)
    : config_(c),
      stack_(stack),
      index_(index),
      path_(fmt::format("{}.layers.{}", path_of(stack), index)),
      self_attention_(path_ + ".self_attn", path_ + ".self_attn_layer_norm", c.d_model, storage,
                      places),
      fc1_(make_linear(path_ + ".fc1", c.d_model, own().ffn_dim, storage)),
      fc2_(make_linear(path_ + ".fc2", own().ffn_dim, c.d_model, storage)),
      norm_(path_ + ".final_layer_norm", c.d_model, kNormEpsilon, storage),
      hidden_place_(places.next()),
      output_place_(places.next()) {
  if (is_decoder()) {
    cross_attention_ = std::make_unique<BartAttention>(
        path_ + ".encoder_attn", path_ + ".encoder_attn_layer_norm", c.d_model, storage, places);
  }
  if (own().layerdrop > 0) left_out_place_ = places.next();
}

std::vector<nn::Linear*> BartLayer::linears() {
  std::vector<nn::Linear*> list;
  for (BartAttention* a : {&self_attention_, cross_attention_.get()}) {
    if (a != nullptr) list.insert(list.end(), {&a->k, &a->v, &a->q, &a->out});
  }
  list.insert(list.end(), {&fc1_, &fc2_});
  return list;
}

std::vector<nn::Parameter*> BartLayer::parameters() {
  std::vector<nn::Parameter*> list;
  self_attention_.append_parameters(list);
  if (cross_attention_) cross_attention_->append_parameters(list);
  fc1_.append_parameters(list);
  fc2_.append_parameters(list);
  norm_.append_parameters(list);
  return list;
}

std::vector<Shelved> BartLayer::makes() const {
  if (!ends_encoder()) return {};
  return {{kEncoderOutput, true}};
}

std::vector<int> BartLayer::reads() const {
  return is_decoder() ? std::vector<int>{kEncoderOutput} : std::vector<int>{};
}

nn::BiasedAttentionShape BartLayer::shape_of(const nn::Batch& queries, const nn::Batch& keys,
                                             uint64_t place) const {
  const int64_t head_dim = config_.d_model / own().heads;
  return {.num_heads = own().heads,
          .head_dim = head_dim,
          .offsets = queries.offsets,
          .key_offsets = keys.offsets,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim)),
          .dropout = config_.attention_dropout,
          .place_id = place};
}

at::Tensor BartLayer::attend(const nn::Remakable& x, const at::Tensor& residual,
                             const nn::ForwardContext& context) {
  BartAttention& a = self_attention_;
  auto qkv = nn::linear_shared_input({&a.q, &a.k, &a.v}, x, context);
  nn::BiasedAttentionShape shape = shape_of(*context.batch, *context.batch, a.scores_place);
  at::Tensor mixed;
  if (is_decoder() && context.generation.decoder_cache != nullptr) {
    read_decoder_cache(qkv, shape, index_, context);
    mixed = nn::biased_attention(qkv[0], qkv[1], qkv[2], at::Tensor(), shape, context);
  } else {
    mixed = nn::attention(qkv[0], qkv[1], qkv[2],
                          {.num_heads = shape.num_heads,
                           .num_kv_heads = shape.num_heads,
                           .head_dim = shape.head_dim,
                           .scale = shape.scale,
                           .layer = index_,
                           .rotates = false,
                           .dropout = shape.dropout,
                           .place_id = shape.place_id,
                           .is_causal = is_decoder()},
                          context);
  }
  return add_with_dropout(a.out, mixed, residual, {config_.dropout, a.output_place, false},
                          context);
}

at::Tensor BartLayer::attend_source(const nn::Remakable& x, const at::Tensor& residual,
                                    const nn::ForwardContext& context) {
  BartAttention& a = *cross_attention_;
  const at::Tensor q = nn::linear_shared_input({&a.q}, x, context)[0];
  const std::vector<at::Tensor> kv = source_keys_values(a.k, a.v, index_, context);
  nn::BiasedAttentionShape shape = shape_of(*context.batch, *context.batch->source, a.scores_place);
  shape.offsets = offsets_by_source(*context.batch);
  const at::Tensor mixed = nn::biased_attention(q, kv[0], kv[1], at::Tensor(), shape, context);
  return add_with_dropout(a.out, mixed, residual, {config_.dropout, a.output_place, false},
                          context);
}

at::Tensor BartLayer::transform(const nn::Remakable& x, const at::Tensor& residual,
                                const nn::ForwardContext& context) {
  const at::Tensor hidden = nn::linear_shared_input({&fc1_}, x, context)[0];
  nn::Remakable active = nn::activate(hidden, config_.activation);
  if (context.drops() && config_.activation_dropout > 0) {
    active = nn::dropout(active.value, config_.activation_dropout, hidden_place_, context);
  }
  return add_with_dropout(fc2_, active, residual,
                          {config_.dropout, output_place_, /*is_last=*/config_.has_norms_first},
                          context);
}

at::Tensor BartLayer::with_norm(nn::LayerNorm& norm, Sum sum, const at::Tensor& x,
                                const nn::ForwardContext& context) {
  if (!config_.has_norms_first) return norm.forward((this->*sum)(x, x, context));
  const auto [normed, residual] = norm.forward_with_residual(x);
  return (this->*sum)(normed, residual, context);
}

bool BartLayer::is_left_out(const at::Tensor& x, const nn::ForwardContext& context) const {
  // The plan has the pass with all layers.
  if (own().layerdrop == 0 || !context.drops() || x.is_meta()) return false;
  const uint64_t key = ops::mix_key(nn::dropout_key(context.draw, left_out_place_));
  return static_cast<double>(key >> 11) * 0x1p-53 < own().layerdrop;
}

at::Tensor BartLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::ForwardContext own = is_decoder() ? context : of_source(context);
  at::Tensor y;
  if (!is_left_out(x, context)) {
    y = with_norm(self_attention_.norm, &BartLayer::attend, x, own);
    if (is_decoder()) y = with_norm(cross_attention_->norm, &BartLayer::attend_source, y, own);
    y = with_norm(norm_, &BartLayer::transform, y, own);
  } else if (is_decoder()) {
    // The encoder's output gets a gradient of every layer.
    y = x + context.pass.shelf->at(kEncoderOutput).narrow(0, 0, 0).sum().to(x.scalar_type());
  } else {
    y = x.clone();
  }
  if (ends_encoder()) context.pass.shelf->at(kEncoderOutput) = y;
  return y;
}

BartEncoderNorm::BartEncoderNorm(const BartConfig& config, at::ScalarType storage)
    : norm_("model.encoder.layer_norm", config.d_model, kNormEpsilon, storage) {}

std::vector<nn::Parameter*> BartEncoderNorm::parameters() {
  std::vector<nn::Parameter*> list;
  norm_.append_parameters(list);
  return list;
}

at::Tensor BartEncoderNorm::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor y = norm_.forward(x);
  context.pass.shelf->at(kEncoderOutput) = y;
  return y;
}

BartHead::BartHead(const BartConfig& config, at::ScalarType storage,
                   std::shared_ptr<nn::Parameter> tied)
    : lm_head_(make_lm_head(config, storage, std::move(tied))) {
  if (config.has_norms_first) {
    norm_.emplace("model.decoder.layer_norm", config.d_model, kNormEpsilon, storage);
  }
  if (!config.has_logits_bias) return;
  auto bias = std::make_unique<nn::Parameter>(
      kLogitsBias, std::vector<int64_t>{1, config.vocab_size}, at::kFloat);
  bias->set_buffer();
  lm_head_.attach_bias(std::move(bias));
}

std::vector<nn::Parameter*> BartHead::parameters() {
  std::vector<nn::Parameter*> list;
  if (norm_) norm_->append_parameters(list);
  lm_head_.append_parameters(list);
  return list;
}

at::Tensor BartHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return loss_or_logits(norm_ ? norm_->forward(x) : x, lm_head_, context);
}

at::Tensor BartHead::logits(const at::Tensor& x) {
  return lm_head_.forward(norm_ ? norm_->forward(x) : x, nn::ForwardContext{}).to(at::kFloat);
}

}  // namespace strata::models
