#include "strata/nn/embedded_rows.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/nn/virtual_tokens.h"
#include "strata/ops/uniform_noise.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PromptCall {
  Parameter* prompt;
  Batch batch;
};

// Embedded tokens with the rows of the prompt in the virtual places.
struct PromptFunction : torch::autograd::Function<PromptFunction> {
  static at::Tensor forward(AutogradContext* context, const PromptCall& call, const at::Tensor& x,
                            const at::Tensor& /*anchor*/) {
    at::Tensor y = x.clone();
    place_prompt_(y, call.batch, *call.prompt);
    save_state(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<PromptCall>(context);
    if (call.prompt->requires_grad()) prompt_backward(gradients[0], call.batch, *call.prompt);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = gradients[0].index_fill(0, call.batch.virtual_rows, 0);
    }
    return {at::Tensor(), dx, at::Tensor()};
  }
};

}  // namespace

at::Tensor scale_rows(const at::Tensor& rows, double scale) {
  if (scale == 1.0) return rows;
  return rows * at::full({}, scale, at::kDouble).to(rows.scalar_type()).item<double>();
}

at::Tensor with_noise(const at::Tensor& rows, const ForwardContext& context) {
  if (!context.training || context.embedding_noise == 0) return rows;
  // Beside those of dropout: of adapters' layers, which count from 0, and of the model's.
  constexpr uint64_t kPlace = uint64_t{1} << 48;
  // A constant: the rows' gradient passes by.
  ops::add_uniform_noise_(rows.detach(),
                          context.embedding_noise / std::sqrt(static_cast<double>(rows.size(1))),
                          context.batch->token_keys, dropout_key(context.draw, kPlace));
  return rows;
}

at::Tensor with_prompt(const at::Tensor& x, const at::Tensor& anchor, const Batch& batch,
                       Parameter& prompt) {
  if (!batch.virtual_rows.defined()) return x;
  return PromptFunction::apply(PromptCall{&prompt, batch}, x, anchor);
}

}  // namespace strata::nn
