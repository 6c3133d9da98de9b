#include "strata/models/llama/plain_mlp.h"

#include <memory>

#include <fmt/format.h>

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

PlainMlp::PlainMlp(const PlainMlpConfig& config, const std::string& path, at::ScalarType storage)
    : up_proj_(path + "." + config.up,
               shape(config.llama.hidden_size, config.llama.intermediate_size,
                     config.llama.mlp_bias, storage)),
      down_proj_(path + "." + config.down,
                 shape(config.llama.intermediate_size, config.llama.hidden_size,
                       config.llama.mlp_bias, storage)),
      activation_(config.activation) {
  if (!activation_) xielu_.emplace(path + ".act_fn", storage);
}

void PlainMlp::append_parameters(std::vector<nn::Parameter*>& list) {
  up_proj_.append_parameters(list);
  down_proj_.append_parameters(list);
  if (xielu_) xielu_->append_parameters(list);
}

nn::Remakable PlainMlp::activate(const at::Tensor& up) {
  if (xielu_) return xielu_->forward(up);
  return nn::activate(up, *activation_);
}

at::Tensor PlainMlp::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                              const nn::ForwardContext& context) {
  const at::Tensor up = nn::linear_shared_input({&up_proj_}, normed, context)[0];
  return down_proj_.forward_add_last(activate(up), residual, context);
}

MakeDecoderLayer make_plain_mlp_layers(const PlainMlpConfig& config) {
  return [config](const LlamaConfig& llama, int64_t index, at::ScalarType storage,
                  nn::Rope& rope) -> std::unique_ptr<DecoderLayer> {
    auto mlp =
        std::make_unique<PlainMlp>(config, fmt::format("model.layers.{}.mlp", index), storage);
    return std::make_unique<LlamaDecoderLayer>(llama, index, storage, rope, std::move(mlp));
  };
}

}  // namespace strata::models
