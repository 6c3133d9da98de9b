#include "strata/nn/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/nn/kv_cache.h"
#include "strata/ops/attention.h"
#include "strata/ops/rope.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionCall {
  AttentionOptions options;
  std::vector<int64_t> offsets;
  RopeTables tables;
};

// [T, heads * D] as [T, heads, D].
at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.view({x.size(0), heads, head_dim});
}

void rotate_(const at::Tensor& q, const at::Tensor& k, const RopeTables& tables, bool inverse) {
  ops::apply_rope_(q, tables.cos, tables.sin, inverse);
  ops::apply_rope_(k, tables.cos, tables.sin, inverse);
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const auto& o = call.options;
    const at::Tensor q_heads = split_heads(q, o.num_heads, o.head_dim);
    const at::Tensor k_heads = split_heads(k, o.num_kv_heads, o.head_dim);
    rotate_(q_heads, k_heads, call.tables, /*inverse=*/false);
    const ops::AttentionResult result = ops::attention(
        q_heads, k_heads, split_heads(v, o.num_kv_heads, o.head_dim), call.offsets, o.scale);
    at::Tensor out = result.out.view({q.size(0), o.num_heads * o.head_dim});
    context->save_for_backward({q, k, v, out, result.lse});
    save_state(context, call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<AttentionCall>(context);
    const auto& o = call.options;
    const variable_list saved = context->get_saved_variables();
    const auto heads = [&](const at::Tensor& x, int64_t count) {
      return split_heads(x, count, o.head_dim);
    };
    const ops::AttentionGradients g = ops::attention_backward(
        heads(gradients[0].contiguous(), o.num_heads), heads(saved[0], o.num_heads),
        heads(saved[1], o.num_kv_heads), heads(saved[2], o.num_kv_heads),
        heads(saved[3], o.num_heads), saved[4], call.offsets, o.scale);
    rotate_(g.dq, g.dk, call.tables, /*inverse=*/true);
    return {at::Tensor(), g.dq.flatten(1), g.dk.flatten(1), g.dv.flatten(1)};
  }
};

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RopeTables& tables, const AttentionOptions& o, KvCache& cache) {
  const at::Tensor q_heads = split_heads(q, o.num_heads, o.head_dim);
  const at::Tensor k_heads = split_heads(k, o.num_kv_heads, o.head_dim);
  rotate_(q_heads, k_heads, tables, /*inverse=*/false);
  const KeysValues all =
      extend_cache(cache, o.layer, k_heads, split_heads(v, o.num_kv_heads, o.head_dim));
  return ops::attention_with_cache(q_heads, all.keys, all.values, o.scale).flatten(1);
}

}  // namespace

at::Tensor rotary_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            Rope& rope, const AttentionOptions& options,
                            const ForwardContext& context) {
  const RopeTables& tables = rope.tables(context.batch->positions);
  if (context.cache != nullptr) return cached_attention(q, k, v, tables, options, *context.cache);
  return AttentionFunction::apply(AttentionCall{options, context.batch->offsets, tables}, q, k, v);
}

}  // namespace strata::nn
