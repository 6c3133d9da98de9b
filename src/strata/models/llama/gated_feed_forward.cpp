#include "strata/models/llama/gated_feed_forward.h"

#include <ATen/ATen.h>

#include "strata/nn/gated_mlp.h"
#include "strata/nn/scaled_add.h"

namespace strata::models {
namespace {

nn::Linear::Options shape(const GatedFeedForwardOptions& o, int64_t in, int64_t out) {
  return {.in_features = in, .out_features = out, .bias = o.bias, .storage = o.storage};
}

}  // namespace

GatedFeedForward::GatedFeedForward(const GatedFeedForwardOptions& o)
    : gate_multiplier_(o.gate_multiplier),
      multiplier_(o.multiplier),
      gate_(o.path + "." + o.gate,
            shape(o, o.hidden_size, (o.up.empty() ? 2 : 1) * o.intermediate_size)),
      down_(o.path + "." + o.down, shape(o, o.intermediate_size, o.hidden_size)) {
  if (o.up.empty()) return;
  up_.emplace(o.path + "." + o.up, shape(o, o.hidden_size, o.intermediate_size));
}

std::vector<nn::Linear*> GatedFeedForward::linears() {
  if (!up_) return {&gate_, &down_};
  return {&gate_, &*up_, &down_};
}

void GatedFeedForward::append_parameters(std::vector<nn::Parameter*>& list) {
  for (const nn::Linear* layer : linears()) layer->append_parameters(list);
}

nn::Remakable GatedFeedForward::gated(const nn::Remakable& normed,
                                      const nn::ForwardContext& context) {
  if (!up_) return nn::swiglu_of_halves(nn::linear_shared_input({&gate_}, normed, context)[0]);
  const auto gate_up = nn::linear_shared_input({&gate_, &*up_}, normed, context);
  const at::Tensor& gate = gate_up[0];
  return nn::swiglu(gate_multiplier_ == 1.0 ? gate : gate * gate_multiplier_, gate_up[1]);
}

at::Tensor GatedFeedForward::forward_last(const nn::Remakable& normed,
                                          const nn::ForwardContext& context) {
  const nn::Remakable inner = gated(normed, context);
  // As in Llama's layer: where the result is not wanted, nothing is remade.
  if (!context.pass.wants_output) return down_.forward_last(inner.value, context);
  return nn::linear_shared_input({&down_}, inner, context)[0];
}

at::Tensor GatedFeedForward::add_last(const nn::Remakable& normed, const at::Tensor& residual,
                                      const nn::ForwardContext& context) {
  if (multiplier_ == 1.0) return down_.forward_add_last(gated(normed, context), residual, context);
  return nn::add_scaled(residual, forward_last(normed, context), multiplier_,
                        context.pass.wants_output);
}

}  // namespace strata::models
