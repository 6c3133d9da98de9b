#include "strata/models/t5/blocks.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "strata/nn/activation.h"
#include "strata/nn/attention/biased_attention.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedding.h"

namespace strata::models {
namespace {

const char* name_of(Stack stack) { return stack == Stack::kEncoder ? "encoder" : "decoder"; }

nn::Linear::Options shape(int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = false, .storage = storage};
}

int64_t longest(const std::vector<int64_t>& offsets) {
  int64_t most = 0;
  for (size_t d = 1; d < offsets.size(); ++d) most = std::max(most, offsets[d] - offsets[d - 1]);
  return most;
}

nn::Linear make_lm_head(const T5Config& c, at::ScalarType storage,
                        std::shared_ptr<nn::Parameter> tied) {
  if (tied != nullptr) return nn::Linear("lm_head", std::move(tied));
  return nn::Linear("lm_head", shape(c.d_model, c.vocab_size, storage));
}

}  // namespace

T5Embedding::T5Embedding(const T5Config& config, Stack stack, std::shared_ptr<nn::Parameter> shared,
                         uint64_t place_id)
    : dropout_rate_(config.dropout_rate),
      stack_(stack),
      shared_(std::move(shared)),
      place_id_(place_id) {
  shared_->set_embedding_table();
}

std::string T5Embedding::path() const {
  return stack_ == Stack::kEncoder ? "shared" : "decoder.embed_tokens";
}

at::Tensor T5Embedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::ForwardContext own = stack_ == Stack::kEncoder ? of_source(context) : context;
  const at::Tensor y = nn::embed(x, own.batch->ids, *shared_, /*padding_id=*/std::nullopt);
  return nn::dropout(y, dropout_rate_, place_id_, own);
}

T5Attention::T5Attention(const std::string& layer_path, const char* name, const T5Config& c,
                         at::ScalarType storage, DropoutPlaces& places)
    : q(layer_path + "." + name + ".q", shape(c.d_model, c.num_heads * c.d_kv, storage)),
      k(layer_path + "." + name + ".k", shape(c.d_model, c.num_heads * c.d_kv, storage)),
      v(layer_path + "." + name + ".v", shape(c.d_model, c.num_heads * c.d_kv, storage)),
      o(layer_path + "." + name + ".o", shape(c.num_heads * c.d_kv, c.d_model, storage)),
      norm(layer_path + ".layer_norm", c.d_model, c.layer_norm_epsilon, storage),
      scores_place(places.next()),
      output_place(places.next()) {}

T5Block::T5Block(const T5Config& c, Stack stack, int64_t index, at::ScalarType storage,
                 DropoutPlaces& places)
    : config_(c),
      stack_(stack),
      index_(index),
      path_(std::string(name_of(stack)) + ".block." + std::to_string(index)),
      self_attention_(path_ + ".layer.0", "SelfAttention", c, storage, places),
      wo_(path_ + (is_decoder() ? ".layer.2" : ".layer.1") + ".DenseReluDense.wo",
          shape(c.d_ff, c.d_model, storage)),
      norm_(path_ + (is_decoder() ? ".layer.2" : ".layer.1") + ".layer_norm", c.d_model,
            c.layer_norm_epsilon, storage),
      hidden_place_(places.next()),
      output_place_(places.next()) {
  if (index == 0 || c.has_bias_in_all) {
    relative_bias_.emplace(path_ + ".layer.0.SelfAttention.relative_attention_bias",
                           nn::RelativeBuckets{.count = c.relative_attention_num_buckets,
                                               .max_distance = c.relative_attention_max_distance,
                                               .both_directions = !is_decoder()},
                           c.num_heads, storage);
  }
  if (is_decoder()) {
    cross_attention_ =
        std::make_unique<T5Attention>(path_ + ".layer.1", "EncDecAttention", c, storage, places);
  }
  const std::string dense = path_ + (is_decoder() ? ".layer.2" : ".layer.1") + ".DenseReluDense";
  const nn::Linear::Options wide = shape(c.d_model, c.d_ff, storage);
  if (c.is_gated) {
    wi_0_.emplace(dense + ".wi_0", wide);
    wi_1_.emplace(dense + ".wi_1", wide);
  } else {
    wi_.emplace(dense + ".wi", wide);
  }
}

std::vector<nn::Linear*> T5Block::linears() {
  std::vector<nn::Linear*> list{&self_attention_.q, &self_attention_.k, &self_attention_.v,
                                &self_attention_.o};
  if (cross_attention_) {
    list.insert(list.end(), {&cross_attention_->q, &cross_attention_->k, &cross_attention_->v,
                             &cross_attention_->o});
  }
  for (auto* layer : {&wi_, &wi_0_, &wi_1_}) {
    if (layer->has_value()) list.push_back(&**layer);
  }
  list.push_back(&wo_);
  return list;
}

std::vector<nn::Parameter*> T5Block::parameters() {
  std::vector<nn::Parameter*> list;
  const auto add_attention = [&](T5Attention& attention) {
    for (const nn::Linear* layer : {&attention.q, &attention.k, &attention.v, &attention.o}) {
      layer->append_parameters(list);
    }
  };
  add_attention(self_attention_);
  if (relative_bias_) list.push_back(&relative_bias_->weight());
  list.push_back(&self_attention_.norm.weight());
  if (cross_attention_) {
    add_attention(*cross_attention_);
    list.push_back(&cross_attention_->norm.weight());
  }
  for (const auto* layer : {&wi_, &wi_0_, &wi_1_}) {
    if (layer->has_value()) (*layer)->append_parameters(list);
  }
  wo_.append_parameters(list);
  list.push_back(&norm_.weight());
  return list;
}

std::vector<Shelved> T5Block::makes() const {
  if (!relative_bias_ || !shares_bias()) return {};
  return {{bias_slot(), relative_bias_->weight().requires_grad()}};
}

std::vector<int> T5Block::reads() const {
  std::vector<int> slots;
  if (!relative_bias_) slots.push_back(bias_slot());
  if (is_decoder()) slots.push_back(kEncoderOutput);
  return slots;
}

at::Tensor T5Block::position_bias(const at::Tensor& x, const nn::ForwardContext& context,
                                  int64_t reach) {
  if (!shares_bias()) return relative_bias_->table(x, reach);
  at::Tensor& shelved = context.pass.shelf->at(static_cast<size_t>(bias_slot()));
  if (relative_bias_) shelved = relative_bias_->table(x, reach);
  return shelved;
}

at::Tensor T5Block::add(const nn::Linear& layer, const nn::Remakable& x, const at::Tensor& residual,
                        uint64_t place_id, const nn::ForwardContext& context) const {
  const bool drops = context.drops() && config_.dropout_rate > 0;
  const bool is_last = &layer == &wo_;
  if (!drops) {
    return is_last ? layer.forward_add_last(x, residual, context)
                   : layer.forward_add(x, residual, context);
  }
  const at::Tensor y = is_last ? layer.forward_last(x, context) : layer.forward(x.value, context);
  return nn::add_dropout(residual, y, config_.dropout_rate, place_id, context,
                         !is_last || context.pass.wants_output);
}

at::Tensor T5Block::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const T5Attention& a = self_attention_;
  const auto [normed, residual] = self_attention_.norm.forward_with_residual(x);
  auto qkv = nn::linear_shared_input({&a.q, &a.k, &a.v}, normed, context);
  nn::BiasedAttentionShape shape{.num_heads = config_.num_heads,
                                 .head_dim = config_.d_kv,
                                 .offsets = context.batch->offsets,
                                 .key_offsets = context.batch->offsets,
                                 .causal = is_decoder(),
                                 .dropout = config_.dropout_rate,
                                 .place_id = a.scores_place};
  if (is_decoder()) read_decoder_cache(qkv, shape, index_, context);
  const at::Tensor bias = position_bias(x, context, longest(shape.key_offsets));
  const at::Tensor mixed = nn::biased_attention(qkv[0], qkv[1], qkv[2], bias, shape, context);
  return add(a.o, mixed, residual, a.output_place, context);
}

at::Tensor T5Block::attend_source(const at::Tensor& x, const nn::ForwardContext& context) {
  const T5Attention& a = *cross_attention_;
  const auto [normed, residual] = cross_attention_->norm.forward_with_residual(x);
  const at::Tensor q = nn::linear_shared_input({&a.q}, normed, context)[0];
  const std::vector<at::Tensor> kv = source_keys_values(a.k, a.v, index_, context);
  const nn::BiasedAttentionShape shape{.num_heads = config_.num_heads,
                                       .head_dim = config_.d_kv,
                                       .offsets = offsets_by_source(*context.batch),
                                       .key_offsets = context.batch->source->offsets,
                                       .dropout = config_.dropout_rate,
                                       .place_id = a.scores_place};
  const at::Tensor mixed = nn::biased_attention(q, kv[0], kv[1], at::Tensor(), shape, context);
  return add(a.o, mixed, residual, a.output_place, context);
}

at::Tensor T5Block::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = norm_.forward_with_residual(x);
  if (!config_.is_gated) {
    const at::Tensor hidden = nn::linear_shared_input({&*wi_}, normed, context)[0];
    const at::Tensor active = nn::activate(hidden, config_.activation).value;
    return add(wo_, nn::dropout(active, config_.dropout_rate, hidden_place_, context), residual,
               output_place_, context);
  }
  const auto pair = nn::linear_shared_input({&*wi_0_, &*wi_1_}, normed, context);
  const at::Tensor gate = nn::activate(pair[0], config_.activation).value;
  const at::Tensor hidden =
      nn::dropout(gate * pair[1], config_.dropout_rate, hidden_place_, context);
  // Autograd keeps both factors anyway; with dropout the mask would have to be drawn again too.
  const bool drops = context.drops() && config_.dropout_rate > 0;
  const auto again = [gate = gate.detach(), up = pair[1].detach()] { return gate * up; };
  return add(wo_, drops ? nn::Remakable(hidden) : nn::Remakable(hidden, again), residual,
             output_place_, context);
}

at::Tensor T5Block::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::ForwardContext own = is_decoder() ? context : of_source(context);
  const at::Tensor attended = attend(x, own);
  return transform(is_decoder() ? attend_source(attended, context) : attended, own);
}

T5EncoderNorm::T5EncoderNorm(const T5Config& config, at::ScalarType storage, uint64_t place_id)
    : prefix_(config.prefix),
      dropout_rate_(config.dropout_rate),
      norm_("encoder.final_layer_norm", config.d_model, config.layer_norm_epsilon, storage),
      place_id_(place_id) {}

at::Tensor T5EncoderNorm::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor y = nn::dropout(norm_.forward(x), dropout_rate_, place_id_, of_source(context));
  context.pass.shelf->at(kEncoderOutput) = y;
  return y;
}

T5Head::T5Head(const T5Config& config, at::ScalarType storage, std::shared_ptr<nn::Parameter> tied,
               uint64_t place_id)
    : dropout_rate_(config.dropout_rate),
      scale_(config.scales_output ? 1.0 / std::sqrt(static_cast<double>(config.d_model)) : 1.0),
      norm_("decoder.final_layer_norm", config.d_model, config.layer_norm_epsilon, storage),
      lm_head_(make_lm_head(config, storage, std::move(tied))),
      place_id_(place_id) {}

std::vector<nn::Parameter*> T5Head::parameters() {
  std::vector<nn::Parameter*> list{&norm_.weight()};
  lm_head_.append_parameters(list);
  return list;
}

at::Tensor T5Head::output_input(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor y = nn::dropout(norm_.forward(x), dropout_rate_, place_id_, context);
  return scale_ == 1.0 ? y : y * scale_;
}

at::Tensor T5Head::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return loss_or_logits(output_input(x, context), lm_head_, context);
}

at::Tensor T5Head::logits(const at::Tensor& x) {
  const nn::ForwardContext plain;
  return lm_head_.forward(output_input(x, plain), plain).to(at::kFloat);
}

}  // namespace strata::models
