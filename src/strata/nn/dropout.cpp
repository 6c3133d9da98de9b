#include "strata/nn/dropout.h"

#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/ops/dropout.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DropoutCall {
  double p;
  at::Tensor token_keys;
  uint64_t key;
};

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const DropoutCall& call,
                            const at::Tensor& x) {
    save_state(context, call);
    return ops::dropout(x, call.p, call.token_keys, call.key);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<DropoutCall>(context);
    return {at::Tensor(),
            ops::dropout_backward(gradients[0].contiguous(), call.p, call.token_keys, call.key)};
  }
};

struct AddDropoutFunction : torch::autograd::Function<AddDropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const DropoutCall& call,
                            const at::Tensor& residual, const at::Tensor& x, bool wants_output) {
    save_state(context, call);
    if (!wants_output) return at::empty_strided(x.sizes(), {0, 0}, x.options());
    return ops::dropout(x, call.p, call.token_keys, call.key).add_(residual);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<DropoutCall>(context);
    return {at::Tensor(), gradients[0],
            ops::dropout_backward(gradients[0].contiguous(), call.p, call.token_keys, call.key),
            at::Tensor()};
  }
};

DropoutCall call_of(double p, uint64_t place_id, const ForwardContext& context) {
  return {p, context.batch->token_keys, dropout_key(context.draw, place_id)};
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, uint64_t place_id,
                   const ForwardContext& context) {
  if (!context.drops() || p == 0) return x;
  return DropoutFunction::apply(call_of(p, place_id, context), x.contiguous());
}

at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& x, double p, uint64_t place_id,
                       const ForwardContext& context, bool wants_output) {
  return AddDropoutFunction::apply(call_of(p, place_id, context), residual, x, wants_output);
}

}  // namespace strata::nn
