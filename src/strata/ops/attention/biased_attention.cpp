// Attention with a bias: checks and choice of the device. The CPU's kernels are in
// attention_cpu.cpp, a GPU's steps in dense_biased_attention.cpp.
#include "strata/ops/attention/biased_attention.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/attention/attention_arguments.h"
#include "strata/ops/attention/dense_biased_attention.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "biased attention";

HeadsView view_of(const char* argument, const at::Tensor& tensor, const at::Tensor& like) {
  return heads_view(kOp, argument, tensor, like);
}

void check_documents(const BiasedAttentionOptions& o, int64_t queries, int64_t keys) {
  const auto ascends = [](std::span<const int64_t> offsets, int64_t end) {
    return !offsets.empty() && offsets.front() == 0 && offsets.back() == end &&
           std::ranges::adjacent_find(offsets, std::ranges::greater_equal()) == offsets.end();
  };
  if (o.offsets.size() == o.key_offsets.size() && ascends(o.offsets, queries) &&
      ascends(o.key_offsets, keys)) {
    return;
  }
  throw InternalError(
      "{}: found document offsets [{}] and [{}], expected as many of both, ascending to {} and {}",
      kOp, fmt::join(o.offsets, ", "), fmt::join(o.key_offsets, ", "), queries, keys);
}

int64_t farthest_distance(const BiasedAttentionOptions& o) {
  int64_t farthest = 0;
  for (size_t d = 1; d < o.offsets.size(); ++d) {
    farthest = std::max({farthest, o.offsets[d] - o.offsets[d - 1] - 1 + o.key_lead,
                         o.key_offsets[d] - o.key_offsets[d - 1] - 1});
  }
  return farthest;
}

// A distance beyond the table would read outside of it.
void check_bias(const at::Tensor& bias, int64_t heads, const BiasedAttentionOptions& o) {
  const int64_t farthest = farthest_distance(o);
  check_type(kOp, "bias", bias, at::kFloat);
  check_contiguous(kOp, "bias", bias);
  if (bias.dim() == 2 && bias.size(0) == heads && bias.size(1) % 2 == 1 &&
      bias.size(1) / 2 >= farthest) {
    return;
  }
  throw InternalError("{}: found a bias of shape [{}], expected [{}, 2 n + 1] with n at least {}",
                      kOp, fmt::join(bias.sizes(), ", "), heads, farthest);
}

void check_positions(const char* name, const at::Tensor& table, const at::Tensor& q,
                     const at::Tensor& k, const BiasedAttentionOptions& o) {
  if (!table.defined()) return;
  const int64_t farthest = farthest_distance(o);
  check_type(kOp, name, table, q.scalar_type());
  if (table.dim() == 3 && table.size(0) % 2 == 1 && table.size(0) / 2 >= farthest &&
      table.size(1) == q.size(1) && table.size(2) == q.size(2) && k.size(1) == q.size(1)) {
    return;
  }
  throw InternalError("{}: found {} of shape [{}], expected [2 n + 1, {}, {}] with n at least {}",
                      kOp, name, fmt::join(table.sizes(), ", "), k.size(1), q.size(2), farthest);
}

at::Tensor fp32_zeros_like(const at::Tensor& x) {
  return x.defined() ? at::zeros(x.sizes(), x.options().dtype(at::kFloat)) : x;
}

// What a GPU takes for them; `g` gets those that are sums.
void imagine_gradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& bias,
                       const BiasedAttentionOptions& options, bool wants_bias,
                       BiasedAttentionGradients& g) {
  g.dkey_positions = fp32_zeros_like(options.key_positions);
  g.dquery_positions = fp32_zeros_like(options.query_positions);
  if (wants_bias) g.dbias = at::zeros_like(bias);
  dense::imagine_scores(q, k, options, /*is_backward=*/true);
}

// The kernels sum them up in pieces of the documents, so that the sum has one order on any number
// of threads: in at most eight, and in several only where they take no more memory than q in fp32.
int64_t position_pieces(const BiasedAttentionOptions& o, int64_t span) {
  const auto documents = static_cast<int64_t>(o.offsets.size()) - 1;
  return std::clamp<int64_t>(o.offsets.back() / span, 1, std::min<int64_t>(8, documents));
}

// [pieces, Hq, 2 n + 1, padded D].
at::Tensor pieces_like(const at::Tensor& table, int64_t pieces) {
  if (!table.defined()) return table;
  return at::zeros({pieces, table.size(1), table.size(0), cpu::padded_columns(table.size(2))},
                   table.options().dtype(at::kFloat));
}

// As the table, [2 n + 1, Hq, D].
at::Tensor sum_of_pieces(const at::Tensor& pieces, int64_t channels) {
  if (!pieces.defined()) return pieces;
  return pieces.sum(0).narrow(2, 0, channels).transpose(0, 1).contiguous();
}

cpu::AttentionArguments checked_arguments(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const at::Tensor& bias,
                                          const BiasedAttentionOptions& o) {
  check_heads(kOp, q, k, v);
  check_documents(o, q.size(0), k.size(0));
  check_positions("key_positions", o.key_positions, q, k, o);
  check_positions("query_positions", o.query_positions, q, k, o);
  if (o.key_positions.defined() && o.query_positions.defined()) {
    check_shape(kOp, "query_positions", o.query_positions, o.key_positions.sizes());
  }
  if (o.window < 0 || !(o.softcap >= 0)) {
    throw InternalError("{}: found a window of {} and a softcap of {}, expected 0 or more", kOp,
                        o.window, o.softcap);
  }
  cpu::AttentionArguments a{.type = element_of(kOp, "q", q),
                            .q = view_of("q", q, q),
                            .k = view_of("k", k, q),
                            .v = view_of("v", v, q),
                            .channels = q.size(2),
                            .offsets = o.offsets,
                            .scale = static_cast<float>(o.scale),
                            .lse = nullptr,
                            .tokens = q.size(0),
                            .key_lead = o.key_lead,
                            .causal = o.causal,
                            .window = o.window,
                            .key_offsets = o.key_offsets,
                            .dropout = o.dropout,
                            .dropout_key = o.dropout_key,
                            .softcap = static_cast<float>(o.softcap)};
  if (bias.defined()) {
    check_bias(bias, q.size(1), o);
    a.bias_span = bias.size(1);
    a.bias_origin = bias.size(1) / 2;
    if (!bias.is_meta()) a.bias = bias.const_data_ptr<float>();
  }
  if (o.key_positions.defined()) a.key_positions = view_of("key_positions", o.key_positions, q);
  if (o.query_positions.defined()) {
    a.query_positions = view_of("query_positions", o.query_positions, q);
  }
  if (o.has_positions()) {
    a.position_span = (o.key_positions.defined() ? o.key_positions : o.query_positions).size(0);
  }
  if (o.dropout > 0) {
    check_shape(kOp, "token_keys", o.token_keys, {q.size(0)});
    check_type(kOp, "token_keys", o.token_keys, at::kLong);
    if (!o.token_keys.is_meta()) a.token_keys = o.token_keys.const_data_ptr<int64_t>();
  }
  return a;
}

}  // namespace

AttentionResult biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, const BiasedAttentionOptions& options) {
  cpu::AttentionArguments arguments = checked_arguments(q, k, v, bias, options);
  if (is_for_cuda(q) && !q.is_meta()) {
    return dense::biased_attention(q, k, v, bias, options,
                                   dense::most_scores(options.has_positions()));
  }
  AttentionResult result{at::empty(q.sizes(), q.options()),
                         at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
  if (q.is_meta()) {
    if (is_for_cuda(q)) dense::imagine_scores(q, k, options, /*is_backward=*/false);
    return result;
  }
  const ActivityTimer timer(Activity::kAttention);
  arguments.lse = result.lse.mutable_data_ptr<float>();
  cpu::attention(arguments, view_of("out", result.out, q));
  return result;
}

BiasedAttentionGradients biased_attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& bias,
                                                   const AttentionResult& forward,
                                                   const BiasedAttentionOptions& options,
                                                   bool wants_bias) {
  cpu::AttentionArguments arguments = checked_arguments(q, k, v, bias, options);
  check_shape(kOp, "dout", dout, q.sizes());
  check_shape(kOp, "lse", forward.lse, {q.size(1), q.size(0)});
  if (is_for_cuda(q) && !q.is_meta()) {
    return dense::biased_attention_backward(dout, q, k, v, bias, forward, options, wants_bias,
                                            dense::most_scores(options.has_positions()));
  }
  BiasedAttentionGradients g{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                             at::empty(v.sizes(), v.options())};
  if (is_for_cuda(q)) {
    imagine_gradients(q, k, bias, options, wants_bias, g);
    return g;
  }
  const auto documents = static_cast<int64_t>(options.offsets.size()) - 1;
  at::Tensor parts;  // of each document, so that the sum has one order on any number of threads
  if (wants_bias) parts = at::zeros({documents, bias.size(0), bias.size(1)}, bias.options());
  const int64_t pieces =
      options.has_positions() ? position_pieces(options, arguments.position_span) : 0;
  const at::Tensor of_keys = pieces_like(options.key_positions, pieces);
  const at::Tensor of_queries = pieces_like(options.query_positions, pieces);
  if (!q.is_meta()) {
    const ActivityTimer timer(Activity::kAttention);
    const auto data = [](const at::Tensor& x) {
      return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
    };
    arguments.lse = const_cast<float*>(forward.lse.const_data_ptr<float>());  // only read
    cpu::attention_backward(arguments, {.dout = view_of("dout", dout, q),
                                        .out = view_of("out", forward.out, q),
                                        .dq = view_of("dq", g.dq, q),
                                        .dk = view_of("dk", g.dk, q),
                                        .dv = view_of("dv", g.dv, q),
                                        .dbias = data(parts),
                                        .dkey_positions = data(of_keys),
                                        .dquery_positions = data(of_queries),
                                        .position_pieces = pieces});
  }
  if (wants_bias) g.dbias = parts.sum(0);
  g.dkey_positions = sum_of_pieces(of_keys, q.size(2));
  g.dquery_positions = sum_of_pieces(of_queries, q.size(2));
  if (of_queries.defined()) g.dquery_positions.mul_(options.scale);
  return g;
}

}  // namespace strata::ops
