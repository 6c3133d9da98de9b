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

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, uint64_t place_id,
                   const ForwardContext& context) {
  if (!context.training || p == 0) return x;
  return DropoutFunction::apply(
      DropoutCall{p, context.batch->token_keys, dropout_key(context.draw, place_id)},
      x.contiguous());
}

}  // namespace strata::nn
