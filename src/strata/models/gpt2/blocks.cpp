#include "strata/models/gpt2/blocks.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/models/reward_head.h"
#include "strata/nn/activation.h"
#include "strata/nn/attention.h"
#include "strata/nn/chunked_cross_entropy.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"
#include "strata/nn/kv_cache.h"
#include "strata/nn/reward_loss.h"

namespace strata::models {
namespace {

// Places of dropout, beside those of the adapters' layers, which count from 0.
constexpr uint64_t kFirstPlace = uint64_t{1} << 32;

nn::Linear::Options shape(const Gpt2Config& c, int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in,
          .out_features = out,
          .bias = true,
          .storage = storage,
          .transposed = c.has_conv1d};
}

nn::Linear make_lm_head(const Gpt2Config& c, at::ScalarType storage,
                        std::shared_ptr<nn::Parameter> tied) {
  if (c.scores_documents) {
    return nn::Linear(kRewardLayer,
                      {.in_features = c.n_embd, .out_features = 1, .storage = storage});
  }
  if (tied != nullptr) return nn::Linear("lm_head", std::move(tied));
  return nn::Linear("lm_head",
                    {.in_features = c.n_embd, .out_features = c.vocab_size, .storage = storage});
}

nn::LayerNorm make_norm(const Gpt2Config& c, const std::string& path, at::ScalarType storage) {
  return nn::LayerNorm(path, c.n_embd, c.layer_norm_epsilon, storage);
}

// Positions that the longest document takes, with what the cache holds before it.
int64_t num_positions(const nn::ForwardContext& context) {
  const std::vector<int64_t>& offsets = context.batch->of_documents().offsets;
  int64_t longest = 0;
  for (size_t d = 1; d < offsets.size(); ++d) {
    longest = std::max(longest, offsets[d] - offsets[d - 1]);
  }
  return longest + (context.cache == nullptr ? 0 : context.cache->length);
}

struct ResidualDropout {
  double rate;
  uint64_t place_id;
  bool is_last;  // of its block
};

// residual + dropout(layer(x)).
at::Tensor add(const nn::Linear& layer, const nn::Remakable& x, const at::Tensor& residual,
               const ResidualDropout& dropout, const nn::ForwardContext& context) {
  if (!context.drops() || dropout.rate == 0) {
    return dropout.is_last ? layer.forward_add_last(x, residual, context)
                           : layer.forward_add(x, residual, context);
  }
  const at::Tensor y =
      dropout.is_last ? layer.forward_last(x, context) : layer.forward(x.value, context);
  return nn::add_dropout(residual, y, dropout.rate, dropout.place_id, context,
                         !dropout.is_last || context.wants_output);
}

}  // namespace

Gpt2Embedding::Gpt2Embedding(const Gpt2Config& c, at::ScalarType storage)
    : dropout_rate_(c.embd_pdrop),
      tokens_("transformer.wte",
              std::make_shared<nn::Parameter>(
                  "transformer.wte.weight", std::vector<int64_t>{c.vocab_size, c.n_embd}, storage),
              /*padding_id=*/std::nullopt),
      positions_("transformer.wpe.weight", {c.n_positions, c.n_embd}, storage) {
  positions_.set_embedding_table();
}

std::vector<nn::Parameter*> Gpt2Embedding::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  list.push_back(&positions_);
  return list;
}

at::Tensor Gpt2Embedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (const int64_t most = positions_.shape()[0]; num_positions(context) > most) {
    throw ConfigError(
        "max_length: found a document of {} tokens, expected at most {}, for which the model has "
        "positions (n_positions); lower max_length",
        num_positions(context), most);
  }
  const at::Tensor rows =
      nn::with_noise(tokens_.forward(x, context.batch->ids), context) +
      nn::embed(x, context.batch->positions, positions_, /*padding_id=*/std::nullopt);
  return nn::dropout(rows, dropout_rate_, kFirstPlace, context);
}

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
  ln_1_.append_parameters(list);
  c_attn_.append_parameters(list);
  attention_c_proj_.append_parameters(list);
  ln_2_.append_parameters(list);
  c_fc_.append_parameters(list);
  mlp_c_proj_.append_parameters(list);
  return list;
}

uint64_t Gpt2Block::place_id(DropoutPlace place) const {
  // The embedding's place is the first.
  return kFirstPlace + 1 +
         static_cast<uint64_t>(index_) * static_cast<uint64_t>(DropoutPlace::kCount) +
         static_cast<uint64_t>(place);
}

at::Tensor Gpt2Block::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = ln_1_.forward_with_residual(x);
  const at::Tensor qkv = nn::linear_shared_input({&c_attn_}, normed, context)[0];
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
                                     .place_id = place_id(DropoutPlace::kScores),
                                     .interleaved = config_.interleaved};
  const at::Tensor mixed = nn::fused_attention(qkv, options, context);
  return add(attention_c_proj_, mixed, residual,
             {config_.resid_pdrop, place_id(DropoutPlace::kAttention), /*is_last=*/false}, context);
}

at::Tensor Gpt2Block::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = ln_2_.forward_with_residual(x);
  const at::Tensor hidden = nn::linear_shared_input({&c_fc_}, normed, context)[0];
  return add(mlp_c_proj_, nn::activate(hidden, config_.activation), residual,
             {config_.resid_pdrop, place_id(DropoutPlace::kMlp), /*is_last=*/true}, context);
}

at::Tensor Gpt2Block::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  return transform(attend(x, context), context);
}

Gpt2Head::Gpt2Head(const Gpt2Config& config, at::ScalarType storage,
                   std::shared_ptr<nn::Parameter> tied)
    : ln_f_(make_norm(config, "transformer.ln_f", storage)),
      lm_head_(make_lm_head(config, storage, std::move(tied))) {}

std::vector<nn::Parameter*> Gpt2Head::parameters() {
  std::vector<nn::Parameter*> list;
  ln_f_.append_parameters(list);
  lm_head_.append_parameters(list);
  return list;
}

at::Tensor Gpt2Head::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (lm_head_.path() == kRewardLayer) {
    const at::Tensor rows = ln_f_.forward(nn::rewarded_rows(x, context));
    return nn::reward_loss(lm_head_.forward(rows, context), context);
  }
  return nn::chunked_cross_entropy(ln_f_.forward(x), lm_head_, context);
}

at::Tensor Gpt2Head::logits(const at::Tensor& x) {
  const at::Tensor rows = ln_f_.forward(x);
  at::Tensor logits = lm_head_.forward(rows, nn::ForwardContext{}).to(at::kFloat);
  if (lm_head_.token_rows()) lm_head_.token_rows()->replace_logits(rows, logits);
  return logits;
}

}  // namespace strata::models
