#include "strata/nn/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/ops/embedding.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingCall {
  Parameter* weight;
  std::optional<int64_t> padding_id;
  at::Tensor ids;
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const EmbeddingCall& call,
                            const at::Tensor& anchor) {
    save_state(context, call);
    return ops::embedding(call.weight->value(), call.ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<EmbeddingCall>(context);
    if (call.weight->requires_grad()) {
      at::Tensor dy = gradients[0].contiguous(), ids = call.ids;
      // Without data (the memory plan) no row is known to be padding.
      if (call.padding_id.has_value() && ids.is_cuda()) {
        // An id of no row: the kernel passes over it, and the host need not count.
        ids = ids.masked_fill(ids.eq(*call.padding_id), -1);
      } else if (call.padding_id.has_value() && !ids.is_meta()) {
        const at::Tensor rows = ids.ne(*call.padding_id).nonzero().view(-1);
        if (rows.numel() < ids.numel()) {
          dy = dy.index_select(0, rows);
          ids = ids.index_select(0, rows);
        }
      }
      const GradTarget target = call.weight->grad();
      ops::embedding_backward(dy, ids, target.tensor, target.beta);
    }
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& anchor, const at::Tensor& ids, Parameter& weight,
                 std::optional<int64_t> padding_id) {
  return EmbeddingFunction::apply(EmbeddingCall{&weight, padding_id, ids}, anchor);
}

}  // namespace strata::nn
