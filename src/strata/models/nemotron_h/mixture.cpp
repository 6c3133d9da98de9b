#include "strata/models/nemotron_h/mixture.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/nn/experts/expert_parameter.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

PlainMlpConfig shared_of(const NemotronHConfig& c) {
  PlainMlpConfig mlp{.llama = c.llama};
  mlp.llama.intermediate_size = c.experts.shared_intermediate_size;
  return mlp;
}

// The router's products are taken in fp32.
nn::Remakable widened(const nn::Remakable& x) {
  if (x.value.scalar_type() == at::kFloat) return x;
  if (!x.remake) return x.value.to(at::kFloat);
  return {x.value.to(at::kFloat), [remake = x.remake] { return remake().to(at::kFloat); }};
}

}  // namespace

NemotronMixture::NemotronMixture(const NemotronHConfig& c, const std::string& path,
                                 at::ScalarType storage)
    : options_(c.experts.router),
      router_(path + ".gate", shape(c.llama.hidden_size, c.experts.count, false, storage)),
      correction_(path + ".gate.e_score_correction_bias", {c.experts.count}, at::kFloat),
      shared_(shared_of(c), path + ".shared_experts", storage) {
  correction_.set_buffer();
  const int64_t hidden = c.llama.hidden_size, width = c.experts.intermediate_size;
  const int64_t channels = c.experts.latent_size.value_or(hidden);
  std::vector<nn::Parameter*> ups, downs;
  layers_.reserve(static_cast<size_t>(2 * c.experts.count));  // experts_ points into it
  for (int64_t e = 0; e < c.experts.count; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", path, e);
    nn::Linear& up =
        layers_.emplace_back(expert + "up_proj", shape(channels, width, false, storage));
    nn::Linear& down =
        layers_.emplace_back(expert + "down_proj", shape(width, channels, false, storage));
    experts_.each.push_back({.gate = nullptr, .up = &up, .down = &down});
    ups.push_back(&up.weight());
    downs.push_back(&down.weight());
  }
  up_matrices_ = nn::expert_parameter(path + ".experts.up_proj", c.experts.count, ups);
  down_matrices_ = nn::expert_parameter(path + ".experts.down_proj", c.experts.count, downs);
  if (!c.experts.latent_size) return;
  const bool bias = c.llama.mlp_bias;
  latent_.emplace(Latent{{path + ".fc1_latent_proj", shape(hidden, channels, bias, storage)},
                         {path + ".fc2_latent_proj", shape(channels, hidden, bias, storage)}});
}

std::vector<nn::Linear*> NemotronMixture::linears() {
  std::vector<nn::Linear*> list = shared_.linears();
  if (latent_) list.insert(list.end(), {&latent_->in, &latent_->out});
  return list;
}

std::vector<std::vector<nn::Linear*>> NemotronMixture::fused_linears() {
  std::vector<nn::Linear*> ups, downs;
  for (const nn::Expert& expert : experts_.each) {
    ups.push_back(expert.up);
    downs.push_back(expert.down);
  }
  return {{&router_}, ups, downs};
}

std::vector<nn::Linear*> NemotronMixture::nameless_experts() {
  std::vector<nn::Linear*> list;
  for (nn::Linear& layer : layers_) list.push_back(&layer);
  return list;
}

// The reference's parameters hold up of all experts, then down of all.
void NemotronMixture::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Expert& expert : experts_.each) expert.up->append_parameters(list);
  for (const nn::Expert& expert : experts_.each) expert.down->append_parameters(list);
  router_.append_parameters(list);
  list.push_back(&correction_);
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  shared_.append_parameters(list);
  if (!latent_) return;
  latent_->in.append_parameters(list);
  latent_->out.append_parameters(list);
}

nn::Routing NemotronMixture::route(const nn::Remakable& normed, const nn::ForwardContext& context) {
  const at::Tensor logits = nn::linear_shared_input({&router_}, widened(normed), context)[0];
  return nn::route_by_sigmoid(logits, correction_.value(), options_);
}

at::Tensor NemotronMixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                     const nn::ForwardContext& context) {
  const at::Tensor base = shared_.add_last(normed, residual, context);
  const nn::Routing routing = route(normed, context);
  experts_.in_branch = up_matrices_->branch.get();
  experts_.down_branch = down_matrices_->branch.get();
  if (!latent_) return nn::add_experts_last(experts_, normed, base, routing, context);
  const at::Tensor latent = nn::linear_shared_input({&latent_->in}, normed, context)[0];
  nn::ForwardContext inside = context;
  inside.pass.wants_output = true;  // the layer after reads it
  const at::Tensor sum = nn::add_experts_last(experts_, latent, /*residual=*/{}, routing, inside);
  return latent_->out.forward_add_last(sum, base, context);
}

}  // namespace strata::models
