#include "strata/nn/attention/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/error.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/nn/virtual_tokens.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/attention/attention_sinks.h"
#include "strata/ops/attention/biased_attention.h"
#include "strata/ops/dropout_keys.h"
#include "strata/ops/rope.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionCall {
  AttentionOptions options;
  std::vector<int64_t> offsets;
  RopeTables tables;
  at::Tensor token_keys = {};  // undefined: no dropout
  uint64_t dropout_key = 0;

  // Whether scores pass through more than a softmax.
  bool is_special() const { return token_keys.defined() || options.softcap > 0; }

  ops::BiasedAttentionOptions special() const {
    return {.offsets = offsets,
            .key_offsets = offsets,
            .scale = options.scale,
            .causal = true,
            .window = options.window,
            .softcap = options.softcap,
            .dropout = token_keys.defined() ? options.dropout : 0,
            .dropout_key = dropout_key,
            .token_keys = token_keys};
  }

  // Of documents with `count` tokens more at their front.
  AttentionCall with_front(int64_t count) const {
    AttentionCall longer = *this;
    longer.offsets = offsets_with_front(offsets, count);
    return longer;
  }
};

// Those of the call's heads.
at::Tensor own_sinks(const AttentionOptions& o) {
  return o.sinks->value().narrow(0, o.first_head, o.num_heads);
}

ops::AttentionResult with_sinks(ops::AttentionResult result, const AttentionOptions& o) {
  if (o.sinks != nullptr) ops::add_attention_sinks_(result, own_sinks(o));
  return result;
}

ops::AttentionResult plain_attend(const AttentionCall& call, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v) {
  if (call.is_special()) {
    return ops::biased_attention(q, k, v, /*bias=*/at::Tensor(), call.special());
  }
  return ops::attention(q, k, v, call.offsets, call.options.scale, call.options.window);
}

ops::AttentionResult attend(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  return with_sinks(plain_attend(call, q, k, v), call.options);
}

void write_sinks_gradient(const AttentionCall& call, const at::Tensor& dout,
                          const ops::AttentionResult& forward) {
  Parameter* sinks = call.options.sinks;
  if (sinks == nullptr || !sinks->requires_grad()) return;
  const at::Tensor gradient = ops::attention_sinks_gradient(dout, forward, own_sinks(call.options));
  if (gradient.size(0) == sinks->numel()) return sinks->accumulate_grad(gradient);
  const at::Tensor all = at::zeros(sinks->shape(), gradient.options());
  all.narrow(0, call.options.first_head, gradient.size(0)).copy_(gradient);
  sinks->accumulate_grad(all);
}

ops::AttentionGradients differentiate(const AttentionCall& call, const at::Tensor& dout,
                                      const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const ops::AttentionResult& forward) {
  write_sinks_gradient(call, dout, forward);
  if (call.is_special()) {
    const ops::BiasedAttentionGradients g = ops::biased_attention_backward(
        dout, q, k, v, /*bias=*/at::Tensor(), forward, call.special(), /*wants_bias=*/false);
    return {g.dq, g.dk, g.dv};
  }
  return ops::attention_backward(dout, q, k, v, forward.out, forward.lse, call.offsets,
                                 call.options.scale, call.options.window);
}

// [T, heads * D] as [T, heads, D].
at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.view({x.size(0), heads, head_dim});
}

// The first channels of each head, as many as the tables are for; without tables none.
void rotate_(const at::Tensor& q, const at::Tensor& k, const RopeTables& tables, bool inverse) {
  if (!tables.cos.defined()) return;
  const int64_t channels = 2 * tables.cos.size(1);
  for (const at::Tensor& x : {q, k}) {
    ops::apply_rope_(x.narrow(2, 0, channels), tables.cos, tables.sin, inverse, tables.pairs);
  }
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            KeptAttention* kept, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const auto& o = call.options;
    const at::Tensor q_heads = split_heads(q, o.num_heads, o.head_dim);
    const at::Tensor k_heads = split_heads(k, o.num_kv_heads, o.head_dim);
    rotate_(q_heads, k_heads, call.tables, /*inverse=*/false);
    const ops::AttentionResult result = once(kept, [&] {
      return attend(call, q_heads, k_heads, split_heads(v, o.num_kv_heads, o.head_dim));
    });
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
    const ops::AttentionGradients g =
        differentiate(call, heads(gradients[0].contiguous(), o.num_heads),
                      heads(saved[0], o.num_heads), heads(saved[1], o.num_kv_heads),
                      heads(saved[2], o.num_kv_heads), {heads(saved[3], o.num_heads), saved[4]});
    rotate_(g.dq, g.dk, call.tables, /*inverse=*/true);
    return {at::Tensor(), at::Tensor(), g.dq.flatten(1), g.dk.flatten(1), g.dv.flatten(1)};
  }
};

struct Parts {
  at::Tensor q, k, v;  // [T, heads, D]
};

Parts parts_of(const at::Tensor& qkv, const AttentionOptions& o) {
  if (o.interleaved) {
    const at::Tensor heads = qkv.view({qkv.size(0), o.num_heads, 3, o.head_dim});
    return {heads.select(2, 0), heads.select(2, 1), heads.select(2, 2)};
  }
  const at::Tensor heads = split_heads(qkv, o.num_heads + 2 * o.num_kv_heads, o.head_dim);
  return {heads.narrow(1, 0, o.num_heads), heads.narrow(1, o.num_heads, o.num_kv_heads),
          heads.narrow(1, o.num_heads + o.num_kv_heads, o.num_kv_heads)};
}

// The gradient of the fused tensor is one tensor, too.
struct FusedAttentionFunction : torch::autograd::Function<FusedAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            KeptAttention* kept, const at::Tensor& qkv) {
    const auto& o = call.options;
    const Parts in = parts_of(qkv, o);
    rotate_(in.q, in.k, call.tables, /*inverse=*/false);
    const ops::AttentionResult result = once(kept, [&] { return attend(call, in.q, in.k, in.v); });
    context->save_for_backward({qkv, result.out, result.lse});
    save_state(context, call);
    return result.out.view({qkv.size(0), o.num_heads * o.head_dim});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<AttentionCall>(context);
    const auto& o = call.options;
    const variable_list saved = context->get_saved_variables();
    const Parts in = parts_of(saved[0], o);
    const at::Tensor dqkv = at::empty_like(saved[0]);
    const Parts g = parts_of(dqkv, o);
    const at::Tensor dout = split_heads(gradients[0].contiguous(), o.num_heads, o.head_dim);
    if (call.is_special() || o.sinks != nullptr) {
      const ops::AttentionGradients made =
          differentiate(call, dout, in.q, in.k, in.v, {saved[1], saved[2]});
      g.q.copy_(made.dq);
      g.k.copy_(made.dk);
      g.v.copy_(made.dv);
    } else {
      ops::attention_backward_into(dout, in.q, in.k, in.v, saved[1], saved[2], call.offsets,
                                   o.scale, {g.q, g.k, g.v}, o.window);
    }
    rotate_(g.q, g.k, call.tables, /*inverse=*/true);
    return {at::Tensor(), at::Tensor(), dqkv};
  }
};

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

// An empty cache starts with the prefix. The caller has counted it already (KvCache::length).
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

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RopeTables& tables, const AttentionOptions& o, KvCache& cache) {
  const at::Tensor q_heads = split_heads(q, o.num_heads, o.head_dim);
  const at::Tensor k_heads = split_heads(k, o.num_kv_heads, o.head_dim);
  rotate_(q_heads, k_heads, tables, /*inverse=*/false);
  if (o.prefix != nullptr && cache.length == o.prefix->shape()[0]) put_prefix(o, k, cache);
  const KeysValues all =
      extend_cache(cache, o.layer, k_heads, split_heads(v, o.num_kv_heads, o.head_dim));
  const auto attend_to_all = [&] {
    if (o.softcap == 0) {
      return ops::attention_with_cache(q_heads, all.keys, all.values, o.scale, o.window);
    }
    const int64_t offsets[] = {0, q.size(0)}, key_offsets[] = {0, all.keys.size(0)};
    return ops::biased_attention(q_heads, all.keys, all.values, /*bias=*/at::Tensor(),
                                 {.offsets = offsets,
                                  .key_offsets = key_offsets,
                                  .scale = o.scale,
                                  .key_lead = all.keys.size(0) - q.size(0),
                                  .causal = true,
                                  .window = o.window,
                                  .softcap = o.softcap});
  };
  return with_sinks(attend_to_all(), o).out.flatten(1);
}

// Tables of the batch, and what a cache must know of them.
RopeTables tables_for(Rope& rope, const AttentionOptions& options, const ForwardContext& context) {
  if (!options.rotates) return {};
  KvCache* cache = context.generation.cache;
  if (cache == nullptr) return rope.tables(context.batch->of_documents().positions);
  cache->length_of_change = rope.options().length_of_change();
  return rope.tables(context.batch->positions, cache->text_length);
}

AttentionCall call_of(const AttentionOptions& options, const RopeTables& tables,
                      const ForwardContext& context) {
  const Batch& batch = context.batch->of_documents();
  AttentionCall call{options, batch.offsets, tables};
  if (context.drops() && options.dropout > 0) {
    call.token_keys = batch.token_keys;
    call.dropout_key =
        ops::head_key(dropout_key(context.draw, options.place_id), options.first_head);
  }
  return call;
}

// All tokens of the rank's share of the heads (nn/attention/sequence_parallel.h); `exchange` makes
// their q, k and v side by side.
template <typename Exchange>
at::Tensor shared_attention(const RopeTables& tables, const AttentionOptions& options,
                            const ForwardContext& context, const Exchange& exchange) {
  if (context.generation.cache != nullptr || options.prefix != nullptr ||
      options.projection != nullptr) {
    throw InternalError(
        "attention: found a cache or a prefix beside rows that ranks share, expected neither; "
        "report this as a bug");
  }
  const HeadShare share{options.num_heads, options.num_kv_heads, options.head_dim,
                        context.batch->sequence};
  AttentionOptions own = options;
  own.num_heads = share.own_heads();
  own.num_kv_heads = share.own_kv_heads();
  own.first_head = share.first_head();
  own.interleaved = false;
  return to_own_tokens(share,
                       FusedAttentionFunction::apply(call_of(own, tables, context),
                                                     context.pass.kept_attention, exchange(share)));
}

at::Tensor attention_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const RopeTables& tables, const AttentionOptions& options,
                        const ForwardContext& context) {
  if (context.batch->whole) {
    return shared_attention(tables, options, context,
                            [&](const HeadShare& share) { return to_own_heads(share, q, k, v); });
  }
  if (options.projection != nullptr) options.projection->project();
  if (context.generation.cache != nullptr)
    return cached_attention(q, k, v, tables, options, *context.generation.cache);
  const AttentionCall call = call_of(options, tables, context);
  KeptAttention* kept = context.pass.kept_attention;
  if (options.prefix != nullptr) return PrefixAttentionFunction::apply(call, kept, q, k, v);
  return AttentionFunction::apply(call, kept, q, k, v);
}

at::Tensor fused_attention_of(const at::Tensor& qkv, const RopeTables& tables,
                              const AttentionOptions& options, const ForwardContext& context) {
  if (context.batch->whole) {
    return shared_attention(tables, options, context, [&](const HeadShare& share) {
      return to_own_heads(share, qkv, options.interleaved);
    });
  }
  if (context.generation.cache == nullptr && options.prefix == nullptr) {
    return FusedAttentionFunction::apply(call_of(options, tables, context),
                                         context.pass.kept_attention, qkv);
  }
  const Parts parts = parts_of(qkv, options);
  return attention_of(parts.q.flatten(1), parts.k.flatten(1), parts.v.flatten(1), tables, options,
                      context);
}

}  // namespace

at::Tensor fused_rotary_attention(const at::Tensor& qkv, Rope& rope,
                                  const AttentionOptions& options, const ForwardContext& context) {
  return fused_attention_of(qkv, tables_for(rope, options, context), options, context);
}

at::Tensor fused_attention(const at::Tensor& qkv, const AttentionOptions& options,
                           const ForwardContext& context) {
  return fused_attention_of(qkv, RopeTables{}, options, context);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options, const ForwardContext& context) {
  return attention_of(q, k, v, RopeTables{}, options, context);
}

at::Tensor rotary_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            Rope& rope, const AttentionOptions& options,
                            const ForwardContext& context) {
  return attention_of(q, k, v, tables_for(rope, options, context), options, context);
}

}  // namespace strata::nn
