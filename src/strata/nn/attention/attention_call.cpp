#include "strata/nn/attention/attention_call.h"

#include <utility>

#include <ATen/ATen.h>

#include "strata/nn/parameter.h"
#include "strata/nn/virtual_tokens.h"
#include "strata/ops/attention/attention_sinks.h"

namespace strata::nn {
namespace {

// The sinks of the call's heads.
at::Tensor own_sinks(const AttentionOptions& o) {
  return o.sinks->value().narrow(0, o.first_head, o.num_heads);
}

ops::AttentionResult plain_attend(const AttentionCall& call, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v) {
  if (call.is_special()) {
    return ops::biased_attention(q, k, v, own_bias(call.options), call.special());
  }
  return ops::attention(q, k, v, call.plain());
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

std::vector<int64_t> cut_to_chunks(const std::vector<int64_t>& offsets, int64_t chunk) {
  if (chunk == 0) return offsets;
  std::vector<int64_t> spans;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (int64_t begin = offsets[d]; begin < offsets[d + 1]; begin += chunk) spans.push_back(begin);
  }
  spans.push_back(offsets.back());
  return spans;
}

}  // namespace

AttentionCall::AttentionCall(const AttentionOptions& options, std::vector<int64_t> offsets,
                             const RopeTables& tables)
    : options(options),
      offsets(std::move(offsets)),
      tables(tables),
      spans(cut_to_chunks(this->offsets, options.chunk)) {}

ops::AttentionOptions AttentionCall::plain() const {
  return {.offsets = spans,
          .scale = options.scale,
          .sight = {.window = options.window, .is_causal = options.is_causal}};
}

ops::BiasedAttentionOptions AttentionCall::special() const {
  return {.offsets = spans,
          .key_offsets = spans,
          .scale = options.scale,
          .causal = options.is_causal,
          .window = options.window,
          .softcap = options.softcap,
          .dropout = token_keys.defined() ? options.dropout : 0,
          .dropout_key = dropout_key,
          .token_keys = token_keys};
}

AttentionCall AttentionCall::with_front(int64_t count) const {
  AttentionCall longer = *this;
  longer.offsets = offsets_with_front(offsets, count);
  longer.spans = cut_to_chunks(longer.offsets, options.chunk);
  return longer;
}

at::Tensor own_bias(const AttentionOptions& o) {
  return o.bias.defined() ? o.bias.narrow(0, o.first_head, o.num_heads) : o.bias;
}

ops::AttentionResult with_sinks(ops::AttentionResult result, const AttentionOptions& o) {
  if (o.sinks != nullptr) ops::add_attention_sinks_(result, own_sinks(o));
  return result;
}

ops::AttentionResult attend(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  return with_sinks(plain_attend(call, q, k, v), call.options);
}

ops::AttentionGradients differentiate(const AttentionCall& call, const at::Tensor& dout,
                                      const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const ops::AttentionResult& forward) {
  write_sinks_gradient(call, dout, forward);
  if (call.is_special()) {
    const ops::BiasedAttentionGradients g = ops::biased_attention_backward(
        dout, q, k, v, own_bias(call.options), forward, call.special(), /*wants_bias=*/false);
    return {g.dq, g.dk, g.dv};
  }
  return ops::attention_backward(dout, q, k, v, forward, call.plain());
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.view({x.size(0), heads, head_dim});
}

void rotate_(const at::Tensor& q, const at::Tensor& k, const RopeTables& tables, bool inverse) {
  if (!tables.cos.defined()) return;
  for (const at::Tensor& x : {q, k}) tables.turn_(x, inverse);
}

}  // namespace strata::nn
