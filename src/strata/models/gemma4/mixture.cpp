#include "strata/models/gemma4/mixture.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/nn/experts/expert_parameter.h"

namespace strata::models {
namespace {

nn::RmsNorm norm_of(const Gemma4Config& c, const std::string& path, at::ScalarType storage) {
  return {path, c.llama.hidden_size, c.llama.rms_norm_eps, storage, c.llama.norm_kind};
}

}  // namespace

Gemma4Mixture::Gemma4Mixture(const Gemma4Config& c, const std::string& path, at::ScalarType storage)
    : options_{.experts_per_token = c.experts->per_token, .normalizes = true, .rounds = false},
      // Its factor comes after the rounding of what it normalises.
      router_norm_(path + ".router", c.llama.hidden_size, c.llama.rms_norm_eps, storage,
                   ops::RmsNormKind::kLlama, "scale"),
      expert_scales_(path + ".router.per_expert_scale", {c.experts->count}, storage),
      router_(path + ".router.proj", {.in_features = c.llama.hidden_size,
                                      .out_features = c.experts->count,
                                      .storage = storage}),
      gate_up_(path + ".experts.gate_up_proj",
               {c.experts->count, 2 * c.experts->intermediate_size, c.llama.hidden_size}, storage),
      down_(path + ".experts.down_proj",
            {c.experts->count, c.llama.hidden_size, c.experts->intermediate_size}, storage),
      gate_up_matrices_(nn::expert_parameter(gate_up_, /*rows_are_outputs=*/true)),
      down_matrices_(nn::expert_parameter(down_, /*rows_are_outputs=*/true)),
      experts_{.gate_up = {.weight = &gate_up_, .rows_are_outputs = true},
               .down = {.weight = &down_, .rows_are_outputs = true},
               .gate = c.llama.gate},
      norm_behind_(norm_of(c, path + ".post_feedforward_layernorm_2", storage)),
      norm_before_(norm_of(c, path + ".pre_feedforward_layernorm_2", storage)) {}

void Gemma4Mixture::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&router_norm_.weight(), &expert_scales_});
  router_.append_parameters(list);
  list.insert(list.end(), {&gate_up_, &down_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
}

void Gemma4Mixture::append_norms(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&norm_behind_.weight(), &norm_before_.weight()});
}

nn::Routing Gemma4Mixture::route(const at::Tensor& x, const nn::ForwardContext& context) {
  const double root = std::sqrt(static_cast<double>(x.size(1)));
  const at::Tensor logits = router_.forward(router_norm_.forward(x) * (1.0 / root), context);
  return nn::scaled_by_expert(nn::route(logits, options_, context), expert_scales_);
}

at::Tensor Gemma4Mixture::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  const nn::Routing routing = route(x, context);
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  // The norm after them reads the sum, whoever reads the block's output.
  nn::ForwardContext within = context;
  within.pass.wants_output = true;
  const at::Tensor sum = nn::add_fused_experts_last(experts_, norm_before_.forward_remakable(x),
                                                    at::zeros_like(x), routing, within);
  return norm_behind_.forward(sum);
}

}  // namespace strata::models
