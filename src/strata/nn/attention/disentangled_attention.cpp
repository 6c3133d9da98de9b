#include "strata/nn/attention/disentangled_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/function_state.h"
#include "strata/nn/low_rank.h"
#include "strata/ops/attention/biased_attention.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call {
  BiasedAttentionShape shape;
  at::Tensor rows;             // int64 [2 n + 1]: which vector each distance has
  at::Tensor token_keys = {};  // undefined: no dropout
  uint64_t dropout_key = 0;

  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), shape.num_heads, shape.head_dim});
  }
  // Of each distance, [2 n + 1, H, C].
  at::Tensor spread(const at::Tensor& vectors) const {
    if (!vectors.defined()) return vectors;
    if (vectors.is_meta()) {
      return at::empty({rows.size(0), shape.num_heads, shape.head_dim}, vectors.options());
    }
    return heads(vectors.index_select(0, rows));
  }
  // Gradients of distances to those of vectors, in one order on every device.
  at::Tensor gathered(const at::Tensor& dspread, const at::Tensor& vectors) const {
    if (!vectors.defined() || vectors.is_meta()) {
      return vectors.defined() ? at::empty_like(vectors) : vectors;
    }
    const at::Tensor sum = at::zeros(vectors.sizes(), dspread.options());
    if (!dspread.is_cuda()) {
      sum.index_add_(0, rows, dspread.flatten(1));
    } else {
      const at::Tensor numbers = at::arange(vectors.size(0), rows.options()).unsqueeze(1);
      at::mm_out(const_cast<at::Tensor&>(sum), numbers.eq(rows).to(at::kFloat), dspread.flatten(1));
    }
    return sum.to(vectors.scalar_type());
  }
  ops::BiasedAttentionOptions options(const at::Tensor& key_vectors,
                                      const at::Tensor& query_vectors) const {
    return {.offsets = shape.offsets,
            .key_offsets = shape.key_offsets,
            .scale = shape.scale,
            .dropout = token_keys.defined() ? shape.dropout : 0,
            .dropout_key = dropout_key,
            .token_keys = token_keys,
            .key_positions = spread(key_vectors),
            .query_positions = spread(query_vectors)};
  }
};

struct DisentangledFunction : torch::autograd::Function<DisentangledFunction> {
  static at::Tensor forward(AutogradContext* context, const Call& call, KeptAttention* kept,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& key_vectors,
                            const std::optional<at::Tensor>& query_vectors) {
    const WithoutAutograd plain;
    const at::Tensor as_keys = key_vectors.value_or(at::Tensor());
    const at::Tensor as_queries = query_vectors.value_or(at::Tensor());
    const ops::AttentionResult result = once(kept, [&] {
      return ops::biased_attention(call.heads(q), call.heads(k), call.heads(v), at::Tensor(),
                                   call.options(as_keys, as_queries));
    });
    at::Tensor out = result.out.flatten(1);
    context->save_for_backward({q, k, v, out, result.lse, as_keys, as_queries});
    save_state(context, call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<Call>(context);
    const variable_list saved = context->get_saved_variables();
    const ops::BiasedAttentionGradients g = ops::biased_attention_backward(
        call.heads(gradients[0].contiguous()), call.heads(saved[0]), call.heads(saved[1]),
        call.heads(saved[2]), at::Tensor(), {call.heads(saved[3]), saved[4]},
        call.options(saved[5], saved[6]), /*wants_bias=*/false);
    return {at::Tensor(),
            at::Tensor(),
            g.dq.flatten(1),
            g.dk.flatten(1),
            g.dv.flatten(1),
            call.gathered(g.dkey_positions, saved[5]),
            call.gathered(g.dquery_positions, saved[6])};
  }
};

std::optional<at::Tensor> if_defined(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

int64_t farthest(const std::vector<int64_t>& offsets) {
  int64_t most = 0;
  for (size_t d = 1; d < offsets.size(); ++d) {
    most = std::max(most, offsets[d] - offsets[d - 1] - 1);
  }
  return most;
}

}  // namespace

at::Tensor position_rows(int64_t reach, const PositionVectors& vectors) {
  const int64_t span = vectors.span();
  // Counted from the key to the query.
  at::Tensor places = at::arange(reach, -reach - 1, -1, at::kLong);
  if (vectors.buckets > 0) {
    const int64_t half = vectors.buckets / 2;
    const at::Tensor lengths = places.abs();
    // In fp32 and by these operations, as the reference: its rounding decides at the borders.
    const at::Tensor share =
        at::log(lengths.clamp_min(half).to(at::kFloat) / half) /
        at::log(at::scalar_tensor(
            static_cast<double>(vectors.max_distance - 1) / static_cast<double>(half), at::kFloat));
    const at::Tensor bucket = at::ceil(share * (half - 1)) + half;
    places = at::where(lengths <= half, places, (bucket * places.sign()).to(at::kLong));
  }
  return (places + span).clamp(0, 2 * span - 1);
}

at::Tensor disentangled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& key_vectors, const at::Tensor& query_vectors,
                                  const PositionVectors& vectors, const BiasedAttentionShape& shape,
                                  const ForwardContext& context) {
  Call call{shape, to_device(position_rows(farthest(shape.offsets), vectors), q.device())};
  if (context.drops() && shape.dropout > 0) {
    call.token_keys = context.batch->token_keys;
    call.dropout_key = dropout_key(context.draw, shape.place_id);
  }
  return DisentangledFunction::apply(call, context.pass.kept_attention, q, k, v,
                                     if_defined(key_vectors), if_defined(query_vectors));
}

}  // namespace strata::nn
