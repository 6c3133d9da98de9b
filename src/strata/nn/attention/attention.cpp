#include "strata/nn/attention/attention.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/error.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/attention/attention_call.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/attention/prefix_attention.h"
#include "strata/nn/attention/rotated.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/nn/virtual_tokens.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/attention/biased_attention.h"
#include "strata/ops/dropout_keys.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const AttentionCall& call,
                            KeptAttention* kept, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const WithoutAutograd plain;
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
    const WithoutAutograd plain;
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
      ops::attention_backward_into(dout, in.q, in.k, in.v, {saved[1], saved[2]}, call.plain(),
                                   {g.q, g.k, g.v});
    }
    rotate_(g.q, g.k, call.tables, /*inverse=*/true);
    return {at::Tensor(), at::Tensor(), dqkv};
  }
};

// Of the last queries.size(0) of the keys' tokens, each chunk by itself.
ops::AttentionResult chunked_attention_with_cache(const at::Tensor& queries, const KeysValues& all,
                                                  const AttentionOptions& o) {
  const int64_t end = all.keys.size(0), start = end - queries.size(0);
  std::vector<at::Tensor> outs, lses;
  for (int64_t begin = start; begin < end;) {
    const int64_t first = begin / o.chunk * o.chunk, last = std::min(first + o.chunk, end);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, last - first); };
    const ops::AttentionResult result =
        ops::attention_with_cache(queries.narrow(0, begin - start, last - begin), part(all.keys),
                                  part(all.values), o.scale, /*window=*/0);
    outs.push_back(result.out);
    lses.push_back(result.lse);
    begin = last;
  }
  return {at::cat(outs), at::cat(lses, /*dim=*/1)};
}

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RopeTables& tables, const AttentionOptions& o, KvCache& cache) {
  const at::Tensor q_heads = split_heads(q, o.num_heads, o.head_dim);
  const at::Tensor k_heads = split_heads(k, o.num_kv_heads, o.head_dim);
  rotate_(q_heads, k_heads, tables, /*inverse=*/false);
  if (o.prefix != nullptr && cache.length == o.prefix->shape()[0]) put_prefix(o, k, cache);
  const KeysValues all = o.reads_cache ? read_cache(cache, o.layer, q.size(0))
                                       : extend_cache(cache, o.layer, k_heads,
                                                      split_heads(v, o.num_kv_heads, o.head_dim));
  const auto attend_to_all = [&] {
    if (o.chunk > 0) return chunked_attention_with_cache(q_heads, all, o);
    if (o.softcap == 0 && !o.bias.defined()) {
      return ops::attention_with_cache(q_heads, all.keys, all.values, o.scale, o.window);
    }
    const int64_t offsets[] = {0, q.size(0)}, key_offsets[] = {0, all.keys.size(0)};
    return ops::biased_attention(q_heads, all.keys, all.values, own_bias(o),
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

RopeTables tables_for(Rope& rope, const AttentionOptions& options, const ForwardContext& context) {
  if (!options.rotates) return {};
  return rope_tables(rope, context);
}

AttentionCall call_of(const AttentionOptions& options, const RopeTables& tables,
                      const ForwardContext& context) {
  const Batch& batch = context.batch->of_documents();
  AttentionCall call(options, batch.offsets, tables);
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
        "attention: found a cache or a prefix with rows that ranks share, expected neither; report "
        "this as a bug");
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
  if (options.prefix != nullptr) return prefix_attention(call, kept, q, k, v);
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
