#include "strata/models/moe/mixture.h"

#include <ATen/ATen.h>

#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/experts/router_balance.h"
#include "strata/nn/gated_mlp.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .storage = storage};
}

nn::Remakable widened(const nn::Remakable& x) {
  if (x.value.scalar_type() == at::kFloat) return x;
  if (!x.remake) return x.value.to(at::kFloat);
  return {x.value.to(at::kFloat), [remake = x.remake] { return remake().to(at::kFloat); }};
}

}  // namespace

Mixture::Mixture(const MixtureConfig& c, const std::string& path, at::ScalarType storage)
    : options_(c.router),
      sigmoid_options_(c.sigmoid_router),
      corrected_options_(c.corrected_router),
      balances_logits_(c.balances_logits),
      is_wide_(c.wide_router),
      narrow_scores_(c.narrow_scores),
      router_comes_first_(c.router_comes_first),
      shared_comes_second_(c.shared_comes_second),
      router_is_linear_(c.router_is_linear),
      is_no_target_(c.is_no_target),
      router_(path + "." + c.router_name,
              shape(c.llama.hidden_size, c.num_experts, c.keeps_router ? at::kFloat : storage)) {
  const int64_t hidden = c.llama.hidden_size;
  if (c.keeps_router) router_.weight().set_keeps_type();
  if ((sigmoid_options_ || corrected_options_) && !c.correction_name.empty()) {
    std::vector<int64_t> sizes{c.num_experts};
    if (c.correction_is_row) sizes.insert(sizes.begin(), 1);
    correction_.emplace(path + "." + c.correction_name, sizes, at::kFloat);
    correction_->set_buffer();
  }
  layers_.reserve(static_cast<size_t>(3 * c.num_experts));  // experts_ points into it
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", path, e);
    const auto add = [&](const std::string& name, const nn::Linear::Options& options) {
      return &layers_.emplace_back(expert + name, options);
    };
    experts_.each.push_back(
        {.gate = add(c.gate_name, shape(hidden, c.intermediate_size, storage)),
         .up = add(c.up_name, shape(hidden, c.intermediate_size, storage)),
         .down = add(c.down_name, shape(c.intermediate_size, hidden, storage))});
  }
  if (is_no_target_) name_matrices(path + ".experts.");
  if (!c.shared_intermediate_size) return;
  const std::string shared = path + "." + c.shared_module + ".";
  const auto in = shape(hidden, *c.shared_intermediate_size, storage);
  shared_.emplace(
      Shared{{shared + "gate_proj", in},
             {shared + "up_proj", in},
             {shared + "down_proj", shape(*c.shared_intermediate_size, hidden, storage)},
             {}});
  if (c.shared_has_gate) {
    shared_->scale.emplace(path + ".shared_expert_gate", shape(hidden, 1, storage));
  }
}

// As the reference's parameters.
void Mixture::name_matrices(const std::string& path) {
  std::vector<nn::Parameter*> gates_and_ups, downs;
  for (const nn::Expert& expert : experts_.each) {
    gates_and_ups.insert(gates_and_ups.end(), {&expert.gate->weight(), &expert.up->weight()});
    downs.push_back(&expert.down->weight());
  }
  const int64_t count = std::ssize(experts_.each);
  gate_up_matrices_ = nn::expert_parameter(path + "gate_up_proj", count, gates_and_ups);
  down_matrices_ = nn::expert_parameter(path + "down_proj", count, downs);
}

std::vector<nn::Linear*> Mixture::Shared::linears() {
  std::vector<nn::Linear*> list{&gate, &up, &down};
  if (scale) list.push_back(&*scale);
  return list;
}

std::vector<nn::Linear*> Mixture::linears() {
  std::vector<nn::Linear*> list;
  const auto add_shared_layers = [&] {
    if (!shared_) return;
    for (nn::Linear* layer : shared_->linears()) list.push_back(layer);
  };
  if (!is_no_target_) {
    if (router_comes_first_) list.push_back(&router_);
    if (shared_comes_second_) add_shared_layers();
    for (nn::Linear& layer : layers_) list.push_back(&layer);
    if (!router_comes_first_) list.push_back(&router_);
  }
  if (!shared_comes_second_) add_shared_layers();
  return list;
}

std::vector<std::vector<nn::Linear*>> Mixture::fused_linears() {
  std::vector<nn::Linear*> gates_and_ups, downs;
  for (const nn::Expert& expert : experts_.each) {
    gates_and_ups.insert(gates_and_ups.end(), {expert.gate, expert.up});
    downs.push_back(expert.down);
  }
  if (router_is_linear_) return {gates_and_ups, downs};
  return {{&router_}, gates_and_ups, downs};
}

std::vector<nn::Linear*> Mixture::nameless_experts() {
  std::vector<nn::Linear*> list;
  if (!is_no_target_) return list;
  for (nn::Linear& layer : layers_) list.push_back(&layer);
  return list;
}

std::vector<nn::ExpertParameter*> Mixture::expert_parameters() {
  if (!gate_up_matrices_) return {};
  return {&*gate_up_matrices_, &*down_matrices_};
}

// The reference's fused parameters hold gate and up of all experts, then down of all.
void Mixture::append_parameters(std::vector<nn::Parameter*>& list) {
  if (router_comes_first_) router_.append_parameters(list);
  if (shared_comes_second_) append_shared(list);
  for (const nn::Expert& expert : experts_.each) {
    expert.gate->append_parameters(list);
    expert.up->append_parameters(list);
  }
  for (const nn::Expert& expert : experts_.each) expert.down->append_parameters(list);
  if (!router_comes_first_) router_.append_parameters(list);
  if (correction_) list.push_back(&*correction_);
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  if (!shared_comes_second_) append_shared(list);
}

void Mixture::append_shared(std::vector<nn::Parameter*>& list) {
  if (!shared_) return;
  for (const nn::Linear* layer : shared_->linears()) layer->append_parameters(list);
}

at::Tensor Mixture::add_shared(const nn::Remakable& normed, const at::Tensor& residual,
                               const nn::ForwardContext& context) {
  if (!shared_->scale) {
    const auto gate_up = nn::linear_shared_input({&shared_->gate, &shared_->up}, normed, context);
    return shared_->down.forward_add(nn::swiglu(gate_up[0], gate_up[1]), residual, context);
  }
  const auto gate_up =
      nn::linear_shared_input({&shared_->gate, &shared_->up, &*shared_->scale}, normed, context);
  const at::Tensor y =
      nn::linear_shared_input({&shared_->down}, nn::swiglu(gate_up[0], gate_up[1]), context)[0];
  return residual + at::sigmoid(gate_up[2]) * y;
}

nn::Routing Mixture::route(const nn::Remakable& normed, const nn::ForwardContext& context) {
  const nn::Remakable input = is_wide_ ? widened(normed) : normed;
  return choose(nn::linear_shared_input({&router_}, input, context)[0], normed.value.scalar_type(),
                context);
}

nn::Routing Mixture::choose(const at::Tensor& logits, at::ScalarType type,
                            const nn::ForwardContext& context) {
  if (!sigmoid_options_ && !corrected_options_) return nn::route(logits, options_, context);
  const int64_t experts_per_token = sigmoid_options_ ? sigmoid_options_->experts_per_token
                                                     : corrected_options_->experts_per_token;
  const at::Tensor balanced =
      balances_logits_ ? nn::balanced(logits, experts_per_token, context) : logits;
  const at::Tensor scored = narrow_scores_ ? balanced : balanced.to(at::kFloat);
  const at::Tensor correction = correction_ ? correction_->value() : at::Tensor();
  if (sigmoid_options_) return nn::route_by_sigmoid(scored, correction, *sigmoid_options_);
  return nn::route_by_corrected_softmax(scored, correction, *corrected_options_, type);
}

at::Tensor Mixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                             const nn::ForwardContext& context) {
  const at::Tensor base = shared_ ? add_shared(normed, residual, context) : residual;
  return add_experts(normed, base, route(normed, context), context);
}

at::Tensor Mixture::forward(const nn::Remakable& normed, const nn::ForwardContext& context) {
  // Whether the block runs again the router alone must know.
  const nn::Routing routing = route(normed, context);
  nn::ForwardContext inside = context;
  inside.pass.wants_output = true;
  std::optional<at::Tensor> base;
  if (shared_) base = add_shared(normed, at::zeros_like(normed.value), inside);
  return add_experts(normed, base, routing, inside);
}

at::Tensor Mixture::add_experts(const nn::Remakable& normed, const std::optional<at::Tensor>& base,
                                const nn::Routing& routing, const nn::ForwardContext& context) {
  if (gate_up_matrices_) {
    experts_.in_branch = gate_up_matrices_->branch.get();
    experts_.down_branch = down_matrices_->branch.get();
  }
  return nn::add_experts_last(experts_, normed, base, routing, context);
}

std::unique_ptr<FeedForward> make_mixture(const MixtureConfig& config, int64_t index,
                                          at::ScalarType storage) {
  const auto i = static_cast<size_t>(index);
  if (!config.has_experts.at(i)) return nullptr;
  MixtureConfig own = config;
  if (!config.experts_per_token.empty()) {
    own.router.experts_per_token = config.experts_per_token.at(i);
  }
  return std::make_unique<Mixture>(own, fmt::format("model.layers.{}.{}", index, config.module),
                                   storage);
}

MakeDecoderLayer make_mixture_layers(const MixtureConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    return std::make_unique<LlamaDecoderLayer>(llama, index, storage, rope,
                                               make_mixture(config, index, storage));
  };
}

}  // namespace strata::models
