#include "strata/models/llama/mlp.h"

#include "strata/nn/gated_mlp.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(int64_t in, int64_t out, bool bias, at::ScalarType storage) {
  return {.in_features = in, .out_features = out, .bias = bias, .storage = storage};
}

}  // namespace

Mlp::Mlp(const LlamaConfig& c, const std::string& path, at::ScalarType storage)
    : gate_(c.gate),
      down_proj_(path + ".down_proj",
                 shape(c.intermediate_size, c.hidden_size, c.mlp_bias, storage)) {
  if (c.fused_gate_up) {
    gate_up_proj_.emplace(path + ".gate_up_proj",
                          shape(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias, storage));
    return;
  }
  const auto in = shape(c.hidden_size, c.intermediate_size, c.mlp_bias, storage);
  gate_proj_.emplace(path + ".gate_proj", in);
  up_proj_.emplace(path + ".up_proj", in);
}

std::vector<nn::Linear*> Mlp::linears() {
  if (gate_up_proj_) return {&*gate_up_proj_, &down_proj_};
  return {&*gate_proj_, &*up_proj_, &down_proj_};
}

void Mlp::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
}

nn::Remakable Mlp::gated(const nn::Remakable& normed, const nn::ForwardContext& context) {
  if (gate_up_proj_) {
    return nn::swiglu_of_halves(nn::linear_shared_input({&*gate_up_proj_}, normed, context)[0]);
  }
  const auto gate_up = nn::linear_shared_input({&*gate_proj_, &*up_proj_}, normed, context);
  return (gate_ == ops::GateKind::kSilu ? nn::swiglu : nn::geglu)(gate_up[0], gate_up[1]);
}

}  // namespace strata::models
