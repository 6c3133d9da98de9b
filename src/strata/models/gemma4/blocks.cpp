#include "strata/models/gemma4/blocks.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/nn/activation.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .storage = storage};
}

LlamaConfig with_width(const LlamaConfig& c, int64_t intermediate_size) {
  LlamaConfig wide = c;
  wide.intermediate_size = intermediate_size;
  return wide;
}

nn::RmsNorm norm_of(const Gemma4Config& c, const std::string& path, at::ScalarType storage) {
  return {path, c.llama.hidden_size, c.llama.rms_norm_eps, storage, c.llama.norm_kind};
}

}  // namespace

Gemma4Embedding::Gemma4Embedding(const Gemma4Config& c, at::ScalarType storage)
    : num_layers_(c.llama.num_hidden_layers),
      size_(c.per_layer_size),
      padding_id_(c.llama.pad_token_id),
      tokens_(c.llama, storage) {
  if (size_ == 0) return;
  table_ = std::make_unique<nn::Parameter>(
      "model.embed_tokens_per_layer.weight",
      std::vector<int64_t>{c.per_layer_vocab_size, num_layers_ * size_}, storage);
  table_->set_embedding_table();
  projection_.emplace("model.per_layer_model_projection",
                      shape(c.llama.hidden_size, num_layers_ * size_, storage));
  norm_.emplace("model.per_layer_projection_norm", size_, c.llama.rms_norm_eps, storage,
                c.llama.norm_kind);
}

std::vector<nn::Parameter*> Gemma4Embedding::parameters() {
  std::vector<nn::Parameter*> list = tokens_.parameters();
  if (size_ == 0) return list;
  list.push_back(table_.get());
  projection_->append_parameters(list);
  list.push_back(&norm_->weight());
  return list;
}

std::vector<nn::Linear*> Gemma4Embedding::linears() {
  if (projection_) return {&*projection_};
  return {};
}

std::vector<Shelved> Gemma4Embedding::makes() const {
  std::vector<Shelved> list;
  for (int i = 0; size_ != 0 && i < num_layers_; ++i) {
    list.push_back({kFirstLayerVectors + i, /*has_gradient=*/true});
  }
  return list;
}

at::Tensor Gemma4Embedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor rows = tokens_.forward(x, context);
  if (size_ == 0) return rows;
  const double root = std::sqrt(static_cast<double>(rows.size(1)));
  const at::Tensor projected = projection_->forward(rows, context) * (1.0 / root);
  const at::Tensor of_text = norm_->forward(projected.view({-1, size_}));
  const at::Tensor of_token = nn::scale_rows(nn::embed(x, context.batch->ids, *table_, padding_id_),
                                             std::sqrt(static_cast<double>(size_)));
  const at::Tensor all = (of_text + of_token.view({-1, size_})) * std::sqrt(0.5);
  // [layers, T, size]: each layer reads one piece of memory.
  const auto vectors = all.view({-1, num_layers_, size_}).transpose(0, 1).contiguous().unbind(0);
  for (size_t i = 0; i < vectors.size(); ++i) {
    context.pass.shelf->at(kFirstLayerVectors + i) = vectors[i];
  }
  return rows;
}

Gemma4DecoderLayer::LayerVector::LayerVector(const Gemma4Config& c, const std::string& path,
                                             at::ScalarType storage)
    : gate(path + ".per_layer_input_gate", shape(c.llama.hidden_size, c.per_layer_size, storage)),
      projection(path + ".per_layer_projection",
                 shape(c.per_layer_size, c.llama.hidden_size, storage)),
      norm(norm_of(c, path + ".post_per_layer_input_norm", storage)) {}

Gemma4DecoderLayer::Gemma4DecoderLayer(const Gemma4Config& c, int64_t index, at::ScalarType storage,
                                       nn::Rope& rope)
    : layer_class_(c.llama.layer_class),
      path_("model.layers." + std::to_string(index)),
      vector_slot_(kFirstLayerVectors + static_cast<int>(index)),
      attention_(c, index, path_ + ".self_attn", storage, rope,
                 c.layers.at(static_cast<size_t>(index)).is_global ? kGlobalKeys : kLocalKeys),
      mlp_(with_width(c.llama, c.layers.at(static_cast<size_t>(index)).intermediate_size),
           path_ + ".mlp", storage),
      input_norm_(norm_of(c, path_ + ".input_layernorm", storage)),
      attention_norm_(norm_of(c, path_ + ".post_attention_layernorm", storage)),
      mlp_input_norm_(norm_of(c, path_ + ".pre_feedforward_layernorm", storage)),
      mlp_norm_(norm_of(c, path_ + ".post_feedforward_layernorm", storage)),
      scalar_(path_ + ".layer_scalar", {1}, storage) {
  scalar_.set_buffer();
  if (c.per_layer_size != 0) vector_.emplace(c, path_, storage);
  if (!c.experts) return;
  mixture_.emplace(c, path_, storage);
  mlp_branch_norm_.emplace(path_ + ".post_feedforward_layernorm_1", c.llama.hidden_size,
                           c.llama.rms_norm_eps, storage, c.llama.norm_kind);
}

std::vector<nn::Linear*> Gemma4DecoderLayer::linears() {
  std::vector<nn::Linear*> list = attention_.linears();
  for (nn::Linear* layer : mlp_.linears()) list.push_back(layer);
  if (vector_) list.insert(list.end(), {&vector_->gate, &vector_->projection});
  if (!mixture_) return list;
  for (nn::Linear* layer : mixture_->linears()) list.push_back(layer);
  return list;
}

std::vector<nn::Parameter*> Gemma4DecoderLayer::parameters() {
  std::vector<nn::Parameter*> list{&scalar_};
  attention_.append_parameters(list);
  mlp_.append_parameters(list);
  for (nn::RmsNorm* norm : {&input_norm_, &attention_norm_, &mlp_input_norm_, &mlp_norm_}) {
    list.push_back(&norm->weight());
  }
  if (vector_) {
    vector_->gate.append_parameters(list);
    vector_->projection.append_parameters(list);
    list.push_back(&vector_->norm.weight());
  }
  if (!mixture_) return list;
  mixture_->append_parameters(list);
  list.push_back(&mlp_branch_norm_->weight());
  mixture_->append_norms(list);
  return list;
}

std::vector<nn::ExpertParameter*> Gemma4DecoderLayer::expert_parameters() {
  if (mixture_) return mixture_->expert_parameters();
  return {};
}

std::vector<int> Gemma4DecoderLayer::reads() const {
  std::vector<int> slots = attention_.reads();
  if (vector_) slots.push_back(vector_slot_);
  return slots;
}

at::Tensor Gemma4DecoderLayer::attend(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = input_norm_.forward_with_residual(x);
  const at::Tensor mixed = attention_.mix(normed, context);
  return residual + attention_norm_.forward(attention_.output().forward(mixed, context));
}

at::Tensor Gemma4DecoderLayer::transform(const at::Tensor& x, const nn::ForwardContext& context) {
  const auto [normed, residual] = mlp_input_norm_.forward_with_residual(x);
  at::Tensor y =
      nn::linear_shared_input({&mlp_.down_proj()}, mlp_.gated(normed, context), context)[0];
  if (mixture_) y = mlp_branch_norm_->forward(y) + mixture_->forward(residual, context);
  return residual + mlp_norm_.forward(y);
}

at::Tensor Gemma4DecoderLayer::add_vector(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor& of_layer = context.pass.shelf->at(static_cast<size_t>(vector_slot_));
  const at::Tensor gate =
      nn::activate(vector_->gate.forward(x, context), nn::Activation::kGeluTanh).value;
  return x + vector_->norm.forward(vector_->projection.forward(gate * of_layer, context));
}

at::Tensor Gemma4DecoderLayer::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  at::Tensor y = transform(attend(x, context), context);
  if (vector_) y = add_vector(y, context);
  // Backward needs the number when another unit may lie in the slot: a copy.
  return y * scalar_.value().to(y.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace strata::models
