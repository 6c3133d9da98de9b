#include "strata/models/llama4/feed_forward.h"

#include <memory>

#include <ATen/ATen.h>

#include "strata/models/llama/extended_layer.h"
#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/linear.h"

namespace strata::models {

Llama4Mixture::Llama4Mixture(const Llama4Config& c, const std::string& path, at::ScalarType storage)
    : options_(c.router),
      gate_up_(path + ".experts.gate_up_proj",
               {c.num_experts, c.llama.hidden_size, 2 * c.llama.intermediate_size}, storage),
      down_(path + ".experts.down_proj",
            {c.num_experts, c.llama.intermediate_size, c.llama.hidden_size}, storage),
      gate_up_matrices_(nn::expert_parameter(gate_up_, /*rows_are_outputs=*/true)),
      down_matrices_(nn::expert_parameter(down_, /*rows_are_outputs=*/true)),
      experts_{.gate_up = {.weight = &gate_up_, .branch_is_swapped = true},
               .down = {.weight = &down_, .branch_is_swapped = true},
               .gate = ops::GateKind::kSilu,
               .scales_inputs = true},
      router_(
          path + ".router",
          {.in_features = c.llama.hidden_size, .out_features = c.num_experts, .storage = storage}),
      shared_(c.llama, path + ".shared_expert", storage) {}

void Llama4Mixture::append_parameters(std::vector<nn::Parameter*>& list) {
  list.insert(list.end(), {&gate_up_, &down_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
  router_.append_parameters(list);
  shared_.append_parameters(list);
}

at::Tensor Llama4Mixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                   const nn::ForwardContext& context) {
  const at::Tensor base =
      shared_.down_proj().forward_add(shared_.gated(normed, context), residual, context);
  const at::Tensor logits = nn::linear_shared_input({&router_}, normed, context)[0].to(at::kFloat);
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  return nn::add_fused_experts_last(
      experts_, normed, base, nn::route_by_sigmoid(logits, /*correction=*/{}, options_), context);
}

at::Tensor Llama4Mlp::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                               const nn::ForwardContext& context) {
  return mlp_.down_proj().forward_add_last(mlp_.gated(normed, context), residual, context);
}

MakeDecoderLayer make_llama4_layers(const Llama4Config& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    const auto i = static_cast<size_t>(index);
    const std::string path = fmt::format("model.layers.{}.feed_forward", index);
    ExtendedConfig layer{.llama = llama};
    if (config.are_chunked.at(i)) layer.chunk = config.chunk;
    if (!llama.rotates.at(i)) {
      layer.query_scale = config.query_scale;
    } else if (config.norms_heads) {
      layer.turned_unit_norms = true;
    }
    std::unique_ptr<FeedForward> feed_forward;
    if (config.has_experts.at(i)) {
      feed_forward = std::make_unique<Llama4Mixture>(config, path, storage);
    } else {
      LlamaConfig dense = llama;
      dense.intermediate_size = config.dense_intermediate_size;
      feed_forward = std::make_unique<Llama4Mlp>(dense, path, storage);
    }
    return std::make_unique<ExtendedDecoderLayer>(layer, index, storage, rope,
                                                  std::move(feed_forward));
  };
}

}  // namespace strata::models
