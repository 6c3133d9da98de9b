#include "strata/nn/attention/biased_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/ops/attention/biased_attention.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionCall {
  BiasedAttentionShape shape;
  at::Tensor token_keys;  // undefined: no dropout
  uint64_t dropout_key = 0;

  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), shape.num_heads, shape.head_dim});
  }
  ops::BiasedAttentionOptions options() const {
    return {.offsets = shape.offsets,
            .key_offsets = shape.key_offsets,
            .scale = shape.scale,
            .key_lead = shape.key_lead,
            .causal = shape.causal,
            .dropout = token_keys.defined() ? shape.dropout : 0,
            .dropout_key = dropout_key,
            .token_keys = token_keys};
  }
};

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            KeptAttention* kept, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& bias) {
    const at::Tensor table = bias.value_or(at::Tensor());
    const ops::AttentionResult result = once(kept, [&] {
      return ops::biased_attention(call.heads(q), call.heads(k), call.heads(v), table,
                                   call.options());
    });
    at::Tensor out = result.out.flatten(1);
    context->save_for_backward({q, k, v, out, result.lse, table});
    save_state(context, call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<AttentionCall>(context);
    const variable_list saved = context->get_saved_variables();
    const bool wants_bias = saved[5].defined() && saved[5].requires_grad();
    const ops::BiasedAttentionGradients g = ops::biased_attention_backward(
        call.heads(gradients[0].contiguous()), call.heads(saved[0]), call.heads(saved[1]),
        call.heads(saved[2]), saved[5], {call.heads(saved[3]), saved[4]}, call.options(),
        wants_bias);
    return {at::Tensor(), at::Tensor(), g.dq.flatten(1), g.dk.flatten(1), g.dv.flatten(1), g.dbias};
  }
};

}  // namespace

at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& bias, const BiasedAttentionShape& shape,
                            const ForwardContext& context) {
  AttentionCall call{shape, at::Tensor(), 0};
  if (context.drops() && shape.dropout > 0) {
    call.token_keys = context.batch->token_keys;
    call.dropout_key = dropout_key(context.draw, shape.place_id);
  }
  return AttentionFunction::apply(call, context.pass.kept_attention, q, k, v,
                                  bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

}  // namespace strata::nn
