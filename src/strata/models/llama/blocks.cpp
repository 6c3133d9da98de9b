#include "strata/models/llama/blocks.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/models/residual_dropout.h"
#include "strata/models/reward_head.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/turned_norms.h"
#include "strata/nn/chunked_cross_entropy.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/embedded_rows.h"
#include "strata/nn/embedding.h"
#include "strata/nn/scaled_add.h"
#include "strata/nn/unit_norm.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

nn::Linear make_lm_head(const LlamaConfig& c, at::ScalarType storage,
                        std::shared_ptr<nn::Parameter> tied) {
  if (c.num_labels > 0) {
    return nn::Linear(kRewardLayer, shape(c.hidden_size, c.num_labels, /*bias=*/false, storage));
  }
  if (tied != nullptr) return nn::Linear("lm_head", std::move(tied));
  return nn::Linear("lm_head", shape(c.hidden_size, c.vocab_size, /*bias=*/false, storage));
}

at::Tensor scaled(const at::Tensor& x, double scale) { return scale == 1.0 ? x : x * scale; }

// What attention or MLP reads, and what its result is added to.
nn::RmsNorm::Branches branches_of(std::optional<nn::RmsNorm>& norm, const at::Tensor& x) {
  if (!norm) return {x, x};
  return norm->forward_with_residual(x);
}

}  // namespace

LlamaEmbedding::LlamaEmbedding(const LlamaConfig& config, at::ScalarType storage)
    : embedding_(config.embedding,
                 std::make_shared<nn::Parameter>(
                     config.embedding + ".weight",
                     std::vector<int64_t>{config.vocab_size, config.hidden_size}, storage),
                 config.pad_token_id),
      scale_(config.embedding_scale),
      row_scale_(config.embedding_multiplier) {
  if (config.unit_norms) norm_eps_ = config.rms_norm_eps;
}

std::vector<nn::Parameter*> LlamaEmbedding::parameters() {
  std::vector<nn::Parameter*> list;
  embedding_.append_parameters(list);
  if (prompt_ != nullptr) list.push_back(prompt_.get());
  return list;
}

at::Tensor LlamaEmbedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  // A frozen embedding before a prompt is not part of the graph.
  const bool is_frozen = prompt_ != nullptr && !embedding_.weight().requires_grad();
  const at::Tensor rows = nn::with_noise(
      nn::scale_rows(embedding_.forward(is_frozen ? x.detach() : x, context.batch->ids), scale_),
      context);
  const at::Tensor all =
      prompt_ == nullptr ? rows : nn::with_prompt(rows, x, *context.batch, *prompt_);
  const at::Tensor result = scaled(all, row_scale_);
  return norm_eps_ ? nn::unit_rms_norm(result, *norm_eps_) : result;
}

void DecoderLayer::append_prefix(std::vector<nn::Parameter*>& list, int64_t index) const {
  if (projection_ == nullptr && prefix_ != nullptr) list.push_back(prefix_.get());
  if (projection_ != nullptr && index == 0) {
    const auto weights = projection_->parameters();
    list.insert(list.end(), weights.begin(), weights.end());
  }
}

LlamaDecoderLayer::LlamaDecoderLayer(const LlamaConfig& c, int64_t index, at::ScalarType storage,
                                     nn::Rope& rope, std::unique_ptr<FeedForward> feed_forward)
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
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, c.output_bias, storage)),
      feed_forward_(std::move(feed_forward)) {
  if (c.attention_sinks) {
    sinks_.emplace(path_ + ".self_attn.sinks", std::vector<int64_t>{c.num_attention_heads},
                   storage);
  }
  if (feed_forward_ == nullptr) mlp_.emplace(c, path_ + ".mlp", storage);
  const auto add = [&](std::optional<nn::RmsNorm>& norm, const std::string& name,
                       int64_t channels) {
    norm.emplace(path_ + "." + name, channels, c.rms_norm_eps, storage, c.norm_kind);
  };
  for (const auto& [place, name] : c.layer_norms) add(norm(place), name, c.hidden_size);
  if (!c.attention_gate.empty()) {
    gate_.emplace(
        path_ + ".self_attn." + c.attention_gate,
        shape(c.hidden_size, c.num_attention_heads * c.head_dim, /*bias=*/false, storage));
  }
  if (!c.head_norms && !c.row_norms) return;
  add(q_norm_, "self_attn.q_norm", c.head_dim * (c.row_norms ? c.num_attention_heads : 1));
  add(k_norm_, "self_attn.k_norm", c.head_dim * (c.row_norms ? c.num_key_value_heads : 1));
}

std::vector<nn::Linear*> LlamaDecoderLayer::linears() {
  std::vector<nn::Linear*> list{&q_proj_, &k_proj_, &v_proj_, &o_proj_};
  if (gate_) list.push_back(&*gate_);
  const auto rest = mlp_ ? mlp_->linears() : feed_forward_->linears();
  list.insert(list.end(), rest.begin(), rest.end());
  return list;
}

std::vector<std::vector<nn::Linear*>> LlamaDecoderLayer::fused_linears() {
  if (mlp_) return {};
  return feed_forward_->fused_linears();
}

std::vector<nn::ExpertParameter*> LlamaDecoderLayer::expert_parameters() {
  if (mlp_) return {};
  return feed_forward_->expert_parameters();
}

std::vector<nn::Parameter*> LlamaDecoderLayer::parameters() {
  std::vector<nn::Parameter*> list;
  if (sinks_) list.push_back(&*sinks_);
  for (const nn::Linear* layer : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) {
    layer->append_parameters(list);
  }
  if (q_norm_) list.insert(list.end(), {&q_norm_->weight(), &k_norm_->weight()});
  if (gate_) gate_->append_parameters(list);
  if (config_.norms_come_first) append_norms(list);
  if (mlp_) {
    mlp_->append_parameters(list);
  } else {
    feed_forward_->append_parameters(list);
  }
  if (!config_.norms_come_first) append_norms(list);
  append_prefix(list, index_);
  return list;
}

void LlamaDecoderLayer::append_norms(std::vector<nn::Parameter*>& list) {
  for (const auto& [place, name] : config_.layer_norms) list.push_back(&norm(place)->weight());
}

at::Tensor LlamaDecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = branches_of(norm(NormPlace::kAttentionInput), x);
  std::vector<const nn::Linear*> inputs{&q_proj_, &k_proj_, &v_proj_};
  if (gate_) inputs.push_back(&*gate_);
  auto qkv = nn::linear_shared_input(inputs, normed, context);
  const bool rotates = config_.rotates.empty() || config_.rotates.at(static_cast<size_t>(index_));
  const bool have_turned = q_norm_ && nn::norm_and_turn({*q_norm_, *k_norm_}, qkv[0], qkv[1],
                                                        rotates ? &rope_ : nullptr, context);
  const nn::AttentionOptions options{
      .num_heads = config_.num_attention_heads,
      .num_kv_heads = config_.num_key_value_heads,
      .head_dim = config_.head_dim,
      .scale =
          config_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
      .layer = index_,
      .window = config_.windows.empty() ? 0 : config_.windows.at(static_cast<size_t>(index_)),
      .prefix = prefix(),
      .rotates = rotates && !have_turned,
      .projection = index_ == 0 ? projection() : nullptr,
      .dropout = config_.attention_dropout,
      .softcap = config_.attention_softcap,
      // Beside those of the adapters' layers, which count from 0.
      .place_id = kFirstDropoutPlace + static_cast<uint64_t>(index_),
      .sinks = sinks_ ? &*sinks_ : nullptr,
      .is_causal = config_.is_causal};
  at::Tensor mixed = nn::rotary_attention(qkv[0], qkv[1], qkv[2], rope_, options, context);
  if (gate_) mixed = mixed * at::sigmoid(qkv[3]);
  auto& output = norm(NormPlace::kAttentionOutput);
  if (const double scale = config_.residual_multiplier; scale != 1.0) {
    const at::Tensor y = o_proj_.forward(mixed, context);
    return nn::add_scaled(residual, output ? output->forward(y) : y, scale, /*wants_output=*/true);
  }
  if (output) return residual + output->forward(o_proj_.forward(mixed, context));
  return o_proj_.forward_add_once(mixed, residual, context);
}

at::Tensor LlamaDecoderLayer::add_normed(const at::Tensor& residual, const at::Tensor& y) const {
  const double scale = config_.residual_multiplier;
  return scale == 1.0 ? residual + y : nn::add_scaled(residual, y, scale, /*wants_output=*/true);
}

at::Tensor LlamaDecoderLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = branches_of(norm(NormPlace::kMlpInput), x);
  auto& output = norm(NormPlace::kMlpOutput);
  if (!mlp_ && !output) return feed_forward_->add_last(normed, residual, context);
  if (!mlp_) return add_normed(residual, output->forward(feed_forward_->forward(normed, context)));
  const nn::Remakable gated = mlp_->gated(normed, context);
  nn::Linear& down = mlp_->down_proj();
  if (output) {
    return add_normed(residual,
                      output->forward(nn::linear_shared_input({&down}, gated, context)[0]));
  }
  if (const double scale = config_.residual_multiplier; scale != 1.0) {
    // Where the result is not wanted, the step has just recomputed what it keeps: nothing is
    // remade.
    const at::Tensor y = context.pass.wants_output
                             ? nn::linear_shared_input({&down}, gated, context)[0]
                             : down.forward_last(gated.value, context);
    return nn::add_scaled(residual, y, scale, context.pass.wants_output);
  }
  return down.forward_add_last(gated, residual, context);
}

at::Tensor LlamaDecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

LlamaHead::LlamaHead(const LlamaConfig& config, at::ScalarType storage,
                     std::shared_ptr<nn::Parameter> tied)
    : norm_eps_(config.rms_norm_eps),
      lm_head_(make_lm_head(config, storage, std::move(tied))),
      // With a head for documents the reference scales nothing.
      logit_scale_(config.num_labels > 0 ? 1.0 : 1.0 / config.logits_scaling),
      softcap_(config.logit_softcap) {
  if (config.unit_norms) return;
  norm_.emplace(config.final_norm, config.hidden_size, config.rms_norm_eps, storage,
                config.norm_kind);
}

std::vector<nn::Parameter*> LlamaHead::parameters() {
  std::vector<nn::Parameter*> list;
  if (norm_) list.push_back(&norm_->weight());
  lm_head_.append_parameters(list);
  return list;
}

at::Tensor LlamaHead::normed(const at::Tensor& x) {
  return scaled(norm_ ? norm_->forward(x) : nn::unit_rms_norm(x, norm_eps_), logit_scale_);
}

at::Tensor LlamaHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (lm_head_.path() == kRewardLayer) {
    const at::Tensor rows = normed(nn::document_rows(x, context));
    return nn::document_loss(lm_head_.forward(rows, context), context);
  }
  return nn::chunked_cross_entropy(normed(x), lm_head_, context, softcap_);
}

at::Tensor LlamaHead::logits(const at::Tensor& x) {
  const at::Tensor rows = normed(x);
  at::Tensor logits = lm_head_.forward(rows, nn::ForwardContext{}).to(at::kFloat);
  if (lm_head_.token_rows()) lm_head_.token_rows()->replace_logits(rows, logits);
  if (softcap_ > 0) logits.div_(softcap_).tanh_().mul_(softcap_);
  return logits;
}

}  // namespace strata::models
