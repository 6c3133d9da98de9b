#include "strata/nn/attention/turned_norms.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/libtorch/without_autograd.h"
#include "strata/nn/attention/own_rope_tables.h"
#include "strata/nn/function_state.h"
#include "strata/ops/norm_rope.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call {
  Parameter* q_weight;
  Parameter* k_weight;
  double eps;
  ops::RmsNormKind kind;
  RopeTables tables;
};

struct TurnedNormsFunction : torch::autograd::Function<TurnedNormsFunction> {
  static variable_list forward(AutogradContext* context, const Call& call, const at::Tensor& q,
                               const at::Tensor& k) {
    const WithoutAutograd plain;
    const ops::TurnedQueriesAndKeys turned =
        ops::norm_rope({q, call.q_weight->value()}, {k, call.k_weight->value()}, call.tables.cos,
                       call.tables.sin, call.eps, call.kind);
    context->save_for_backward({q, turned.queries.rstd, k, turned.keys.rstd});
    save_state(context, call);
    return {turned.queries.y, turned.keys.y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<Call>(context);
    const variable_list saved = context->get_saved_variables();
    const auto gradient = [&](size_t i, Parameter& weight) {
      ops::HeadsGradient g{gradients[i].contiguous(), saved[2 * i + 1], {}, 0};
      if (!weight.requires_grad()) return g;
      const GradTarget target = weight.grad();
      g.dweight = target.tensor;
      g.beta = target.beta;
      return g;
    };
    const ops::QueriesAndKeys dx =
        ops::norm_rope_backward({saved[0], call.q_weight->value()}, gradient(0, *call.q_weight),
                                {saved[2], call.k_weight->value()}, gradient(1, *call.k_weight),
                                call.tables.cos, call.tables.sin, call.kind);
    return {at::Tensor(), dx.queries, dx.keys};
  }
};

// Whether heads turn as the kernel turns them: as a whole, halves with halves.
bool turn_whole(const RopeOptions& options, int64_t channels) {
  return options.pairs == ops::RopePairs::kHalves && options.first_channel == 0 &&
         options.head_dim == channels;
}

}  // namespace

bool norm_and_turn(const HeadNorms& norms, at::Tensor& q, at::Tensor& k, Rope* rope,
                   const ForwardContext& context) {
  q = q.contiguous();
  k = k.contiguous();
  const int64_t channels = norms.queries.weight().shape()[0];
  if (rope == nullptr || norms.keys.weight().shape()[0] != channels ||
      !turn_whole(rope->options(), channels) || !ops::can_norm_rope(q, channels)) {
    q = norms.queries.forward(q);
    k = norms.keys.forward(k);
    return false;
  }
  const variable_list turned = TurnedNormsFunction::apply(
      Call{&norms.queries.weight(), &norms.keys.weight(), norms.queries.eps(), norms.queries.kind(),
           own_rope_tables(*rope, context)},
      q, k);
  q = turned[0];
  k = turned[1];
  return true;
}

}  // namespace strata::nn
