#include "strata/models/llama/attention_mixer.h"

#include <cmath>

#include "strata/models/residual_dropout.h"
#include "strata/nn/attention/attention.h"
#include "strata/nn/attention/turned_norms.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

AttentionMixer::AttentionMixer(const LlamaConfig& config, const AttentionNames& names,
                               int64_t index, at::ScalarType storage, nn::Rope& rope)
    : AttentionMixer(config, names, index,
                     "model.layers." + std::to_string(index) + "." + names.module + ".", storage,
                     rope) {}

AttentionMixer::AttentionMixer(const LlamaConfig& c, const AttentionNames& names, int64_t index,
                               const std::string& path, at::ScalarType storage, nn::Rope& rope)
    : config_(c),
      index_(index),
      rope_(rope),
      q_proj_(path + "q_proj",
              shape(c.hidden_size, c.num_attention_heads * c.head_dim, c.input_bias, storage)),
      k_proj_(path + "k_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      v_proj_(path + "v_proj",
              shape(c.hidden_size, c.num_key_value_heads * c.head_dim, c.input_bias, storage)),
      o_proj_(path + names.output,
              shape(c.num_attention_heads * c.head_dim, c.hidden_size, c.output_bias, storage)) {
  if (names.query_norm.empty()) return;
  q_norm_.emplace(path + names.query_norm, c.head_dim, c.rms_norm_eps, storage, c.norm_kind);
  k_norm_.emplace(path + names.key_norm, c.head_dim, c.rms_norm_eps, storage, c.norm_kind);
}

void AttentionMixer::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
  if (q_norm_) list.insert(list.end(), {&q_norm_->weight(), &k_norm_->weight()});
}

at::Tensor AttentionMixer::add(const nn::Remakable& normed, const at::Tensor& residual,
                               const nn::ForwardContext& context) {
  auto qkv = nn::linear_shared_input({&q_proj_, &k_proj_, &v_proj_}, normed, context);
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
      .rotates = rotates && !have_turned,
      .dropout = config_.attention_dropout,
      .place_id = kFirstDropoutPlace + static_cast<uint64_t>(index_)};
  const at::Tensor mixed = nn::rotary_attention(qkv[0], qkv[1], qkv[2], rope_, options, context);
  return finish(o_proj_, mixed, residual, config_.residual_multiplier, context);
}

}  // namespace strata::models
