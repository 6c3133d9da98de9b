#include "strata/models/gpt_oss/mixture.h"

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "strata/nn/experts/expert_parameter.h"
#include "strata/nn/linear.h"

namespace strata::models {
GptOssMixture::GptOssMixture(const GptOssConfig& c, const std::string& path, at::ScalarType storage)
    : options_(c.router),
      router_(path + ".router", {.in_features = c.llama.hidden_size,
                                 .out_features = c.num_experts,
                                 .bias = true,
                                 .storage = storage}),
      gate_up_(path + ".experts.gate_up_proj",
               {c.num_experts, c.llama.hidden_size, 2 * c.llama.intermediate_size}, storage),
      gate_up_bias_(path + ".experts.gate_up_proj_bias",
                    {c.num_experts, 2 * c.llama.intermediate_size}, storage),
      down_(path + ".experts.down_proj",
            {c.num_experts, c.llama.intermediate_size, c.llama.hidden_size}, storage),
      down_bias_(path + ".experts.down_proj_bias", {c.num_experts, c.llama.hidden_size}, storage),
      gate_up_matrices_(nn::expert_parameter(gate_up_, /*rows_are_outputs=*/false)),
      down_matrices_(nn::expert_parameter(down_, /*rows_are_outputs=*/false)),
      experts_{.gate_up = {.weight = &gate_up_, .bias = &gate_up_bias_},
               .down = {.weight = &down_, .bias = &down_bias_},
               .gate = c.gate} {}

void GptOssMixture::append_parameters(std::vector<nn::Parameter*>& list) {
  router_.append_parameters(list);
  list.insert(list.end(), {&gate_up_, &gate_up_bias_, &down_, &down_bias_});
  for (const nn::ExpertParameter* matrices : expert_parameters()) matrices->append_branch(list);
}

at::Tensor GptOssMixture::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                   const nn::ForwardContext& context) {
  const at::Tensor logits = nn::linear_shared_input({&router_}, normed, context)[0];
  experts_.gate_up.branch = gate_up_matrices_.branch.get();
  experts_.down.branch = down_matrices_.branch.get();
  return nn::add_fused_experts_last(experts_, normed, residual,
                                    nn::route(logits, options_, context), context);
}

MakeDecoderLayer make_gpt_oss_layers(const GptOssConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mixture =
        std::make_unique<GptOssMixture>(config, fmt::format("model.layers.{}.mlp", index), storage);
    return std::make_unique<LlamaDecoderLayer>(llama, index, storage, rope, std::move(mixture));
  };
}

}  // namespace strata::models
