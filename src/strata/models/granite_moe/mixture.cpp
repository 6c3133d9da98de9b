#include "strata/models/granite_moe/mixture.h"

#include <memory>

#include <ATen/ATen.h>

#include "strata/models/llama/extended_layer.h"
#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/gated_mlp.h"
#include "strata/nn/linear.h"
#include "strata/nn/scaled_add.h"

namespace strata::models {

GraniteMixture::GraniteMixture(const GraniteMoeConfig& c, const std::string& path,
                               at::ScalarType storage)
    : multiplier_(c.llama.residual_multiplier),
      options_(c.router),
      router_(
          path + ".block_sparse_moe.router",
          {.in_features = c.llama.hidden_size, .out_features = c.num_experts, .storage = storage}),
      gate_up_(path + ".block_sparse_moe.experts.gate_up_proj",
               {c.num_experts, 2 * c.llama.intermediate_size, c.llama.hidden_size}, storage),
      down_(path + ".block_sparse_moe.experts.down_proj",
            {c.num_experts, c.llama.hidden_size, c.llama.intermediate_size}, storage),
      gate_up_matrices_(nn::expert_parameter(gate_up_, /*rows_are_outputs=*/true)),
      down_matrices_(nn::expert_parameter(down_, /*rows_are_outputs=*/true)),
      experts_{.gate_up = {.weight = &gate_up_, .rows_are_outputs = true},
               .down = {.weight = &down_, .rows_are_outputs = true},
               .gate = ops::GateKind::kSilu} {
  if (!c.shared_intermediate_size) return;
  const int64_t width = *c.shared_intermediate_size;
  shared_.emplace(
      Shared{{path + ".shared_mlp.input_linear",
              {.in_features = c.llama.hidden_size, .out_features = 2 * width, .storage = storage}},
             {path + ".shared_mlp.output_linear",
              {.in_features = width, .out_features = c.llama.hidden_size, .storage = storage}}});
}

std::vector<nn::Linear*> GraniteMixture::linears() {
  if (!shared_) return {};
  return {&shared_->input, &shared_->output};
}

void GraniteMixture::append_parameters(std::vector<nn::Parameter*>& list) {
  router_.append_parameters(list);
  list.insert(list.end(), {&gate_up_, &down_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
}

at::Tensor GraniteMixture::add_shared(const nn::Remakable& normed, const at::Tensor& residual,
                                      const nn::ForwardContext& context) {
  const nn::Remakable gated =
      nn::swiglu_of_halves(nn::linear_shared_input({&shared_->input}, normed, context)[0]);
  if (multiplier_ == 1.0) return shared_->output.forward_add(gated, residual, context);
  const at::Tensor y = nn::linear_shared_input({&shared_->output}, gated, context)[0];
  return nn::add_scaled(residual, y, multiplier_, /*wants_output=*/true);
}

at::Tensor GraniteMixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                    const nn::ForwardContext& context) {
  const at::Tensor base = shared_ ? add_shared(normed, residual, context) : residual;
  const at::Tensor logits = nn::linear_shared_input({&router_}, normed, context)[0];
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  return nn::add_fused_experts_last(experts_, normed, base, nn::route(logits, options_, context),
                                    context);
}

MakeDecoderLayer make_granite_moe_layers(const GraniteMoeConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mixture =
        std::make_unique<GraniteMixture>(config, fmt::format("model.layers.{}", index), storage);
    const ExtendedConfig layer{.llama = llama, .norms_come_first = true};
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope, std::move(mixture));
  };
}

}  // namespace strata::models
