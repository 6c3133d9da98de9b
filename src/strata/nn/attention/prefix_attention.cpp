#include "strata/nn/attention/prefix_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/nn/virtual_tokens.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A layer's columns of the prefix: keys, then values.
struct PrefixColumns {
  int64_t keys, values, width;

  explicit PrefixColumns(const AttentionOptions& o) : width(o.num_kv_heads * o.head_dim) {
    keys = o.layer * 2 * width;
    values = keys + width;
  }
};

// Attention to a prefix as attention of longer documents, whose first queries are zero and whose
// first outputs nobody reads.
struct PrefixAttentionFunction : torch::autograd::Function<PrefixAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            KeptAttention* kept, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const auto& o = call.options;
    const PrefixColumns columns(o);
    rotate_(split_heads(q, o.num_heads, o.head_dim), split_heads(k, o.num_kv_heads, o.head_dim),
            call.tables, /*inverse=*/false);
    const int64_t count = o.prefix->shape()[0];
    const auto front = [&](int64_t begin) {
      return prefix_columns(*o.prefix, begin, columns.width).to(k.scalar_type());
    };
    const at::Tensor all_q =
        with_front(q, at::zeros({count, q.size(1)}, q.options()), call.offsets);
    const at::Tensor all_k = with_front(k, front(columns.keys), call.offsets);
    const at::Tensor all_v = with_front(v, front(columns.values), call.offsets);
    const ops::AttentionResult result = once(kept, [&] {
      return attend(call.with_front(count), split_heads(all_q, o.num_heads, o.head_dim),
                    split_heads(all_k, o.num_kv_heads, o.head_dim),
                    split_heads(all_v, o.num_kv_heads, o.head_dim));
    });
    context->save_for_backward({all_q, all_k, all_v, result.out, result.lse});
    save_state(context, call);
    return split_front(result.out.flatten(1), count, call.offsets).rows;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<AttentionCall>(context);
    const auto& o = call.options;
    const PrefixColumns columns(o);
    const variable_list saved = context->get_saved_variables();
    const int64_t count = o.prefix->shape()[0];
    const auto heads = [&](const at::Tensor& x, int64_t number) {
      return split_heads(x, number, o.head_dim);
    };
    const at::Tensor dout =
        with_front(gradients[0], at::zeros({count, gradients[0].size(1)}, gradients[0].options()),
                   call.offsets);
    const ops::AttentionGradients g = differentiate(
        call.with_front(count), heads(dout, o.num_heads), heads(saved[0], o.num_heads),
        heads(saved[1], o.num_kv_heads), heads(saved[2], o.num_kv_heads), {saved[3], saved[4]});
    const Split dq = split_front(g.dq.flatten(1), count, call.offsets);
    const Split dk = split_front(g.dk.flatten(1), count, call.offsets);
    const Split dv = split_front(g.dv.flatten(1), count, call.offsets);
    if (o.prefix->requires_grad()) {
      prefix_backward(dk.front, columns.keys, *o.prefix);
      prefix_backward(dv.front, columns.values, *o.prefix);
    }
    if (o.projection != nullptr) o.projection->backward();
    rotate_(heads(dq.rows, o.num_heads), heads(dk.rows, o.num_kv_heads), call.tables,
            /*inverse=*/true);
    return {at::Tensor(), at::Tensor(), dq.rows, dk.rows, dv.rows};
  }
};

}  // namespace

at::Tensor prefix_attention(const AttentionCall& call, KeptAttention* kept, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v) {
  return PrefixAttentionFunction::apply(call, kept, q, k, v);
}

void put_prefix(const AttentionOptions& o, const at::Tensor& like, KvCache& cache) {
  const PrefixColumns columns(o);
  const auto part = [&](int64_t begin) {
    return split_heads(
        prefix_columns(*o.prefix, begin, columns.width).to(like.scalar_type()).contiguous(),
        o.num_kv_heads, o.head_dim);
  };
  const int64_t length = cache.length;
  cache.length = 0;
  extend_cache(cache, o.layer, part(columns.keys), part(columns.values));
  cache.length = length;
}

}  // namespace strata::nn
