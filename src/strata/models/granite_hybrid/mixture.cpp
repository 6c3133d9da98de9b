#include "strata/models/granite_hybrid/mixture.h"

#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/scaled_add.h"

namespace strata::models {
namespace {

// Under the names of files, which differ from those of the reference's parameters.
nn::ExpertParameter matrices_of(nn::Parameter& weight, const std::string& name) {
  nn::ExpertParameter matrices = nn::expert_parameter(weight, /*rows_are_outputs=*/true);
  matrices.name = name;
  return matrices;
}

}  // namespace

GatedFeedForwardOptions granite_mlp(const GraniteHybridConfig& config, const std::string& layer,
                                    double multiplier, at::ScalarType storage) {
  return {.path = layer + ".shared_mlp",
          .gate = "input_linear",
          .up = {},
          .down = "output_linear",
          .hidden_size = config.llama.hidden_size,
          .intermediate_size = config.llama.intermediate_size,
          .multiplier = multiplier,
          .storage = storage};
}

GraniteHybridMixture::GraniteHybridMixture(const GraniteHybridConfig& c, const std::string& path,
                                           at::ScalarType storage)
    : options_(c.experts->router),
      multiplier_(c.llama.residual_multiplier),
      router_(path + ".block_sparse_moe.router.layer", {.in_features = c.llama.hidden_size,
                                                        .out_features = c.experts->count,
                                                        .storage = storage}),
      gate_up_(path + ".block_sparse_moe.input_linear.weight",
               {c.experts->count, 2 * c.experts->intermediate_size, c.llama.hidden_size}, storage),
      down_(path + ".block_sparse_moe.output_linear.weight",
            {c.experts->count, c.llama.hidden_size, c.experts->intermediate_size}, storage),
      gate_up_matrices_(matrices_of(gate_up_, path + ".block_sparse_moe.experts.gate_up_proj")),
      down_matrices_(matrices_of(down_, path + ".block_sparse_moe.experts.down_proj")),
      experts_{.gate_up = {.weight = &gate_up_, .rows_are_outputs = true},
               .down = {.weight = &down_, .rows_are_outputs = true},
               .gate = ops::GateKind::kSilu},
      shared_(granite_mlp(c, path, /*multiplier=*/1.0, storage)) {}

void GraniteHybridMixture::append_parameters(std::vector<nn::Parameter*>& list) {
  router_.append_parameters(list);
  list.insert(list.end(), {&gate_up_, &down_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  shared_.append_parameters(list);
}

at::Tensor GraniteHybridMixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                          const nn::ForwardContext& context) {
  const at::Tensor logits = nn::linear_shared_input({&router_}, normed, context)[0];
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  const at::Tensor sum =
      nn::add_fused_experts_last(experts_, normed, shared_.forward(normed, context),
                                 nn::route(logits, options_, context), context);
  return nn::add_scaled(residual, sum, multiplier_, context.pass.wants_output);
}

}  // namespace strata::models
