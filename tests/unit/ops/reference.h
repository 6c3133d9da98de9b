// The ops once more from ATen's elementary operations in double, differentiated by autograd: the
// oracle of the op tests. Never: speed.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace strata::ops::reference {

inline at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return weight * (x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps));
}

// The weight is kept as its distance from 1.
inline at::Tensor gemma_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return rms_norm(x, 1 + weight, eps);
}

inline at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor first = x.narrow(2, 0, x.size(2) / 2);
  const at::Tensor second = x.narrow(2, x.size(2) / 2, x.size(2) / 2);
  const at::Tensor c = cos.unsqueeze(1);
  const at::Tensor s = sin.unsqueeze(1);
  return at::cat({first * c - second * s, second * c + first * s}, 2);
}

// Channels turn with their neighbours.
inline at::Tensor rope_of_neighbours(const at::Tensor& x, const at::Tensor& cos,
                                     const at::Tensor& sin) {
  const at::Tensor halves = x.unflatten(2, {-1, 2}).transpose(2, 3).flatten(2);
  return rope(halves, cos, sin).unflatten(2, {2, -1}).transpose(2, 3).flatten(2);
}

inline at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gate * at::sigmoid(gate) * up;
}

inline at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::gelu(gate, "tanh") * up;
}

// Gate and up side by side.
inline at::Tensor clamped_swiglu(const at::Tensor& gate_up, double alpha, double limit) {
  const at::Tensor pairs = gate_up.view({gate_up.size(0), gate_up.size(1) / 2, 2});
  const at::Tensor gate = pairs.select(2, 0).clamp_max(limit);
  return (pairs.select(2, 1).clamp(-limit, limit) + 1) * gate * at::sigmoid(alpha * gate);
}

struct Attention {
  at::Tensor out, lse;
};

// Dense masked softmax, one document after the other; `lead` as for a cache, `window` as there.
// `sinks` [heads]: a column of scores beside the keys that has no value. Not `is_causal`: all keys
// of the document are seen, or those of a window on both sides.
inline Attention attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<int64_t>& offsets, double scale, int64_t lead = 0,
                           int64_t window = 0, const at::Tensor& sinks = {},
                           bool is_causal = true) {
  const int64_t group = q.size(1) / k.size(1);
  std::vector<at::Tensor> outs, lses;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    const int64_t keys = offsets[d + 1] - offsets[d];
    if (keys == 0) continue;
    const int64_t queries = keys - lead;
    auto heads = [&](const at::Tensor& x, int64_t length, int64_t repeat) {
      return x.narrow(0, offsets[d], length).repeat_interleave(repeat, 1).transpose(0, 1);
    };
    const at::Tensor scores =
        at::matmul(heads(q, queries, 1), heads(k, keys, group).transpose(1, 2)) * scale;
    const at::Tensor all = at::ones({queries, keys}, q.options().dtype(at::kBool));
    at::Tensor hidden = is_causal    ? all.triu(lead + 1)
                        : window > 0 ? all.triu(lead + window)
                                     : all.logical_not();
    if (window > 0) hidden = hidden.logical_or(all.tril(lead - window));
    at::Tensor masked = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (sinks.defined()) {
      masked = at::cat({masked, sinks.view({-1, 1, 1}).expand({-1, queries, 1})}, -1);
    }
    lses.push_back(at::logsumexp(masked, {-1}));
    const at::Tensor probabilities = at::softmax(masked, -1).narrow(-1, 0, keys);
    outs.push_back(at::matmul(probabilities, heads(v, keys, group)).transpose(0, 1));
  }
  return {at::cat(outs, 0), at::cat(lses, 1)};
}

// max |a - b| relative to max |b| (or 1e-30 where b is zero throughout).
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return a.numel() == 0 ? 0 : std::numeric_limits<double>::infinity();
  const at::Tensor x = a.detach().cpu().to(at::kDouble);
  const at::Tensor y = b.detach().cpu().to(at::kDouble);
  const double difference = (x - y).abs().max().item<double>();
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return difference / std::max(y.abs().max().item<double>(), 1e-30);
}

}  // namespace strata::ops::reference
