#include "strata/models/granite_moe/mixture.h"

#include <ATen/ATen.h>

#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/scaled_add.h"

namespace strata::models {

GatedFeedForwardOptions granite_mlp(const std::string& layer, int64_t hidden_size,
                                    int64_t intermediate_size, at::ScalarType storage) {
  return {.path = layer + ".shared_mlp",
          .gate = "input_linear",
          .up = {},
          .down = "output_linear",
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .storage = storage};
}

GraniteMixture::GraniteMixture(const GraniteMixtureOptions& o)
    : router_options_(o.experts.router),
      multiplier_(o.multiplier),
      router_(
          o.layer + ".block_sparse_moe.router",
          {.in_features = o.hidden_size, .out_features = o.experts.count, .storage = o.storage}),
      gate_up_(o.layer + ".block_sparse_moe.experts.gate_up_proj",
               {o.experts.count, 2 * o.experts.intermediate_size, o.hidden_size}, o.storage),
      down_(o.layer + ".block_sparse_moe.experts.down_proj",
            {o.experts.count, o.hidden_size, o.experts.intermediate_size}, o.storage),
      gate_up_matrices_(nn::expert_parameter(gate_up_, /*rows_are_outputs=*/true)),
      down_matrices_(nn::expert_parameter(down_, /*rows_are_outputs=*/true)),
      experts_{.gate_up = {.weight = &gate_up_, .rows_are_outputs = true},
               .down = {.weight = &down_, .rows_are_outputs = true},
               .gate = ops::GateKind::kSilu} {
  if (!o.shared_intermediate_size) return;
  shared_.emplace(granite_mlp(o.layer, o.hidden_size, *o.shared_intermediate_size, o.storage));
}

std::vector<nn::Linear*> GraniteMixture::linears() {
  if (!shared_) return {};
  return shared_->linears();
}

void GraniteMixture::append_parameters(std::vector<nn::Parameter*>& list) {
  router_.append_parameters(list);
  list.insert(list.end(), {&gate_up_, &down_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  if (shared_) shared_->append_parameters(list);
}

at::Tensor GraniteMixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                    const nn::ForwardContext& context) {
  std::optional<at::Tensor> shared;
  if (shared_) shared = shared_->forward_last(normed, context);
  const at::Tensor logits = nn::linear_shared_input({&router_}, normed, context)[0];
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  const at::Tensor sum = nn::add_fused_experts_last(
      experts_, normed, shared, nn::route(logits, router_options_, context), context);
  return nn::add_scaled(residual, sum, multiplier_, context.pass.wants_output);
}

}  // namespace strata::models
