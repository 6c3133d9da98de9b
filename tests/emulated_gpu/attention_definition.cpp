#include "attention_definition.h"

#include <ATen/ATen.h>

namespace emulated_gpu {
namespace {

using at::Tensor;

// [rows, heads, channels] with as many heads as the queries have, and gradients back.
Tensor repeated(const Tensor& x, int64_t heads) {
  return x.repeat_interleave(heads / x.size(1), /*dim=*/1);
}
Tensor summed(const Tensor& x, int64_t heads) {
  return x.reshape({x.size(0), heads, x.size(1) / heads, x.size(2)}).sum(2);
}

// [H, queries, keys].
Tensor scores_of(const Tensor& q, const Tensor& k, double scale, const Mask& mask) {
  const int64_t first = mask.causal == Mask::kFromTheEnd ? k.size(0) - q.size(0) : 0;
  const Tensor all = at::ones({q.size(0), k.size(0)}, at::kBool);
  Tensor hidden = mask.causal == Mask::kNone ? all.logical_not() : all.triu(1 + first);
  if (mask.window > 0) {
    hidden = hidden.logical_or(all.tril(first - mask.window));
    hidden = hidden.logical_or(all.triu(first + mask.window));
  }
  return (at::einsum("qhd,khd->hqk", {q, k}) * scale).masked_fill(hidden, -INFINITY);
}

}  // namespace

Attended attend(const Inputs& x, const Documents& documents, double scale, const Mask& mask) {
  Attended all;
  for (const Document& d : documents) {
    const Tensor keys = repeated(x.k.narrow(0, d.key, d.keys), x.q.size(1));
    const Tensor values = repeated(x.v.narrow(0, d.key, d.keys), x.q.size(1));
    const Tensor scores = scores_of(x.q.narrow(0, d.query, d.queries), keys, scale, mask);
    all.lse.push_back(scores.logsumexp(-1));
    all.out.push_back(at::einsum("hqk,khd->qhd", {scores.softmax(-1), values}));
  }
  return all;
}

Gradients gradients(const Tensor& out_gradient, const Inputs& x, const Tensor& out,
                    const Tensor& lse, const Documents& documents, double scale, const Mask& mask) {
  const Tensor products = (out_gradient * out).sum(-1).t();  // [H, T]
  std::vector<Tensor> of_q, of_k, of_v;
  for (const Document& d : documents) {
    const auto row = [&](const Tensor& t) { return t.narrow(1, d.query, d.queries).unsqueeze(-1); };
    const Tensor queries = x.q.narrow(0, d.query, d.queries);
    const Tensor keys = repeated(x.k.narrow(0, d.key, d.keys), x.q.size(1));
    const Tensor values = repeated(x.v.narrow(0, d.key, d.keys), x.q.size(1));
    const Tensor dy = out_gradient.narrow(0, d.query, d.queries);
    const Tensor p = (scores_of(queries, keys, scale, mask) - row(lse)).exp();
    const Tensor dp = at::einsum("qhd,khd->hqk", {dy, values});
    const Tensor ds = p * (dp - row(products)) * scale;
    of_q.push_back(at::einsum("hqk,khd->qhd", {ds, keys}));
    of_k.push_back(summed(at::einsum("hqk,qhd->khd", {ds, queries}), x.k.size(1)));
    of_v.push_back(summed(at::einsum("hqk,qhd->khd", {p, dy}), x.v.size(1)));
  }
  return {at::cat(of_q), at::cat(of_k), at::cat(of_v)};
}

}  // namespace emulated_gpu
