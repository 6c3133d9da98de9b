#include "strata/models/gemma4/attention.h"

#include "strata/nn/attention/rotated.h"
#include "strata/nn/unit_norm.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

Gemma4Attention::Gemma4Attention(const Gemma4Config& config, int64_t index, const std::string& path,
                                 at::ScalarType storage, nn::Rope& rope, int keys_slot)
    : layer_(config.layers.at(static_cast<size_t>(index))),
      num_heads_(config.llama.num_attention_heads),
      window_(config.llama.windows.at(static_cast<size_t>(index))),
      eps_(config.llama.rms_norm_eps),
      rope_(rope),
      keys_slot_(keys_slot),
      q_proj_(path + ".q_proj", shape(config.llama.hidden_size, num_heads_ * layer_.head_dim,
                                      config.llama.input_bias, storage)),
      q_norm_(path + ".q_norm", layer_.head_dim, eps_, storage, config.llama.norm_kind),
      o_proj_(path + ".o_proj", shape(num_heads_ * layer_.head_dim, config.llama.hidden_size,
                                      config.llama.output_bias, storage)) {
  if (layer_.keys == KeysOf::kEarlier) return;
  k_norm_.emplace(path + ".k_norm", layer_.head_dim, eps_, storage, config.llama.norm_kind);
  const auto in = shape(config.llama.hidden_size, layer_.num_key_value_heads * layer_.head_dim,
                        config.llama.input_bias, storage);
  k_proj_.emplace(path + ".k_proj", in);
  if (layer_.has_values) v_proj_.emplace(path + ".v_proj", in);
}

std::vector<nn::Linear*> Gemma4Attention::linears() {
  std::vector<nn::Linear*> list{&q_proj_};
  if (k_proj_) list.push_back(&*k_proj_);
  if (v_proj_) list.push_back(&*v_proj_);
  list.push_back(&o_proj_);
  return list;
}

void Gemma4Attention::append_parameters(std::vector<nn::Parameter*>& list) {
  q_proj_.append_parameters(list);
  list.push_back(&q_norm_.weight());
  if (k_norm_) list.push_back(&k_norm_->weight());
  if (k_proj_) k_proj_->append_parameters(list);
  if (v_proj_) v_proj_->append_parameters(list);
  o_proj_.append_parameters(list);
}

std::vector<Shelved> Gemma4Attention::makes() const {
  if (layer_.keys != KeysOf::kShared) return {};
  return {{keys_slot_, /*has_gradient=*/true}, {keys_slot_ + 1, /*has_gradient=*/true}};
}

std::vector<int> Gemma4Attention::reads() const {
  if (layer_.keys != KeysOf::kEarlier) return {};
  return {keys_slot_, keys_slot_ + 1};
}

nn::AttentionOptions Gemma4Attention::options() const {
  return {.num_heads = num_heads_,
          .num_kv_heads = layer_.num_key_value_heads,
          .head_dim = layer_.head_dim,
          .scale = 1.0,
          .layer = layer_.cache_layer,
          .window = window_,
          .reads_cache = layer_.keys == KeysOf::kEarlier};
}

at::Tensor Gemma4Attention::normed_heads(nn::RmsNorm& norm, const at::Tensor& x) {
  return norm.forward(x.contiguous());
}

Gemma4Attention::KeysAndValues Gemma4Attention::keys_and_values(const at::Tensor* given) {
  const at::Tensor& k = given[0];
  const at::Tensor& v = layer_.has_values ? given[1] : given[0];
  return {normed_heads(*k_norm_, k),
          nn::unit_rms_norm(v.reshape({-1, layer_.head_dim}), eps_).view(v.sizes())};
}

at::Tensor Gemma4Attention::attend_to_shelf(const at::Tensor& q,
                                            const std::optional<KeysAndValues>& made,
                                            const nn::ForwardContext& context) {
  const nn::RopeTables tables = nn::rope_tables(rope_, context);
  auto& shelf = *context.pass.shelf;
  at::Tensor& keys = shelf.at(static_cast<size_t>(keys_slot_));
  at::Tensor& values = shelf.at(static_cast<size_t>(keys_slot_) + 1);
  if (made) {
    keys = nn::rotated(made->k, layer_.num_key_value_heads, tables);
    values = made->v;
  }
  return nn::attention(nn::rotated(q, num_heads_, tables), keys, values, options(), context);
}

at::Tensor Gemma4Attention::mix(const nn::Remakable& normed, const nn::ForwardContext& context) {
  std::vector<const nn::Linear*> in{&q_proj_};
  if (k_proj_) in.push_back(&*k_proj_);
  if (v_proj_) in.push_back(&*v_proj_);
  const auto given = nn::linear_shared_input(in, normed, context);
  const at::Tensor q = normed_heads(q_norm_, given[0]);
  if (layer_.keys == KeysOf::kEarlier) return attend_to_shelf(q, std::nullopt, context);
  const KeysAndValues made = keys_and_values(&given[1]);
  if (layer_.keys == KeysOf::kShared) return attend_to_shelf(q, made, context);
  return nn::rotary_attention(q, made.k, made.v, rope_, options(), context);
}

}  // namespace strata::models
