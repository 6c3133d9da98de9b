#include "strata/models/deepseek/latent_attention.h"

#include <ATen/ATen.h>

#include "strata/models/residual_dropout.h"

namespace strata::models {
namespace {

// Epsilon of the norms of latents, whatever the model's other norms have.
constexpr double kLatentEps = 1e-6;

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

int64_t query_channels(const LatentAttentionConfig& config) {
  return config.heads.num_heads * config.heads.key_dim();
}

}  // namespace

LatentAttention::LatentQueries::LatentQueries(const LlamaConfig& llama,
                                              const LatentAttentionConfig& config,
                                              const std::string& path, at::ScalarType storage)
    : down(path + "q_a_proj",
           shape(llama.hidden_size, *config.query_rank, llama.input_bias, storage)),
      norm(path + "q_a_layernorm", *config.query_rank, kLatentEps, storage),
      up(path + "q_b_proj",
         shape(*config.query_rank, query_channels(config), /*bias=*/false, storage)) {}

LatentAttention::LatentAttention(const LlamaConfig& llama, const LatentAttentionConfig& config,
                                 int64_t index, at::ScalarType storage, nn::Rope& rope)
    : LatentAttention(llama, config, index, "model.layers." + std::to_string(index) + ".self_attn.",
                      storage, rope) {}

LatentAttention::LatentAttention(const LlamaConfig& llama, const LatentAttentionConfig& config,
                                 int64_t index, const std::string& path, at::ScalarType storage,
                                 nn::Rope& rope)
    : llama_(llama),
      config_(config),
      index_(index),
      rope_(rope),
      kv_down_(path + "kv_a_proj_with_mqa",
               shape(llama.hidden_size, config.key_value_rank + config.heads.turned_dim,
                     llama.input_bias, storage)),
      kv_norm_(path + "kv_a_layernorm", config.key_value_rank, kLatentEps, storage),
      kv_up_(path + "kv_b_proj",
             shape(config.key_value_rank,
                   config.heads.num_heads * (config.heads.plain_dim + config.heads.value_dim),
                   /*bias=*/false, storage)),
      o_proj_(path + "o_proj", shape(config.heads.num_heads * config.heads.value_dim,
                                     llama.hidden_size, llama.output_bias, storage)) {
  if (config.query_rank) {
    latent_queries_.emplace(llama, config, path, storage);
  } else {
    q_proj_.emplace(path + "q_proj", shape(llama.hidden_size, query_channels(config),
                                           /*bias=*/false, storage));
  }
}

std::vector<nn::Linear*> LatentAttention::linears() {
  std::vector<nn::Linear*> list;
  if (q_proj_) {
    list.push_back(&*q_proj_);
  } else {
    list.insert(list.end(), {&latent_queries_->down, &latent_queries_->up});
  }
  list.insert(list.end(), {&kv_down_, &kv_up_, &o_proj_});
  return list;
}

void LatentAttention::append_parameters(std::vector<nn::Parameter*>& list) {
  if (q_proj_) {
    q_proj_->append_parameters(list);
  } else {
    latent_queries_->down.append_parameters(list);
    list.push_back(&latent_queries_->norm.weight());
    latent_queries_->up.append_parameters(list);
  }
  kv_down_.append_parameters(list);
  list.push_back(&kv_norm_.weight());
  kv_up_.append_parameters(list);
  o_proj_.append_parameters(list);
}

nn::AttentionOptions LatentAttention::options() const {
  return {.num_heads = config_.heads.num_heads,
          .num_kv_heads = config_.heads.num_heads,
          .head_dim = config_.heads.key_dim(),
          .scale = llama_.attention_scale.value(),
          .layer = index_,
          .dropout = llama_.attention_dropout,
          .place_id = kFirstDropoutPlace + static_cast<uint64_t>(index_)};
}

at::Tensor LatentAttention::queries(const at::Tensor& first, const nn::ForwardContext& context) {
  if (q_proj_) return first;
  const nn::Remakable normed = latent_queries_->norm.forward_remakable(first);
  return nn::linear_shared_input({&latent_queries_->up}, normed, context)[0];
}

nn::LatentKeys LatentAttention::keys(const at::Tensor& latents, const nn::ForwardContext& context) {
  const int64_t rank = config_.key_value_rank;
  const nn::Remakable normed = kv_norm_.forward_remakable(latents.narrow(1, 0, rank).contiguous());
  return nn::latent_keys(nn::linear_shared_input({&kv_up_}, normed, context)[0],
                         latents.narrow(1, rank, config_.heads.turned_dim), config_.heads);
}

at::Tensor LatentAttention::add(const nn::Remakable& normed, const at::Tensor& residual,
                                const nn::ForwardContext& context) {
  const nn::Linear* first = q_proj_ ? &*q_proj_ : &latent_queries_->down;
  const auto inputs = nn::linear_shared_input({first, &kv_down_}, normed, context);
  const at::Tensor q = queries(inputs[0], context);
  const auto [k, v] = keys(inputs[1], context);
  at::Tensor mixed = nn::rotary_attention(q, k, v, rope_, options(), context);
  const nn::LatentHeads& heads = config_.heads;
  if (heads.value_dim < heads.key_dim()) {
    mixed = mixed.view({mixed.size(0), heads.num_heads, heads.key_dim()})
                .narrow(2, 0, heads.value_dim)
                .reshape({mixed.size(0), heads.num_heads * heads.value_dim});
  }
  return finish(o_proj_, mixed, residual, llama_.residual_multiplier, context);
}

}  // namespace strata::models
