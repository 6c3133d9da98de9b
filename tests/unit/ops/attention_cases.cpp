#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/attention/attention_sinks.h"

namespace strata::ops {
namespace {

// Rows tokens in three documents, columns channels, third query heads on half as many kv heads.
struct AttentionInput {
  at::Tensor q, k, v, dout;
  std::vector<int64_t> offsets;
  double scale, pairs;
};
AttentionInput attention_input(const OpSize& size, const Maker& make, Sight sight) {
  const int64_t kv = (size.third + 1) / 2, cut = size.rows / 3;
  double pairs = 0;
  const std::vector<int64_t> offsets = {0, cut, cut, size.rows};
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (int64_t seen = 1; seen <= offsets[d + 1] - offsets[d]; ++seen) {
      const auto of_window = [&](int64_t tokens) {
        return sight.window == 0 ? tokens : std::min(tokens, sight.window);
      };
      const int64_t behind = sight.is_causal ? 0 : offsets[d + 1] - offsets[d] - seen + 1;
      const int64_t both = of_window(seen) + of_window(behind) - (sight.is_causal ? 0 : 1);
      pairs += static_cast<double>(size.third * both);
    }
  }
  return {make.random({size.rows, size.third, size.columns}),
          make.random({size.rows, kv, size.columns}),
          make.random({size.rows, kv, size.columns}),
          make.random({size.rows, size.third, size.columns}),
          offsets,
          1 / std::sqrt(static_cast<double>(size.columns)),
          pairs};
}

template <Sight kSight>
OpCase attention_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kSight);
  const reference::Attention expected =
      reference::attention(leaf(in.q), leaf(in.k), leaf(in.v), in.offsets, in.scale, 0,
                           kSight.window, {}, kSight.is_causal);
  const AttentionResult found = attention(in.q, in.k, in.v, {in.offsets, in.scale, kSight});
  return {.comparisons = {{"out", found.out, expected.out}, {"lse", found.lse, expected.lse}},
          .run =
              [=] {
                attention(in.q, in.k, in.v, {in.offsets, in.scale, kSight});
              },
          .bytes = bytes_of({in.q, in.k, in.v, found.out}),
          .flops = 4 * static_cast<double>(size.columns) * in.pairs};
}

template <Sight kSight>
OpCase attention_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kSight);
  const at::Tensor q64 = leaf(in.q), k64 = leaf(in.k), v64 = leaf(in.v);
  torch::autograd::backward({reference::attention(q64, k64, v64, in.offsets, in.scale, 0,
                                                  kSight.window, {}, kSight.is_causal)
                                 .out},
                            {wide(in.dout)});
  const AttentionResult r = attention(in.q, in.k, in.v, {in.offsets, in.scale, kSight});
  const auto backward = [=] {
    return attention_backward(in.dout, in.q, in.k, in.v, r, {in.offsets, in.scale, kSight});
  };
  const AttentionGradients g = backward();
  const auto value = [=](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return weighted(attention(q, k, v, {in.offsets, in.scale, kSight}).out, in.dout);
  };
  return {
      .comparisons = {{"dq", g.dq, q64.grad()}, {"dk", g.dk, k64.grad()}, {"dv", g.dv, v64.grad()}},
      .slopes = {{"q", in.q, g.dq, [=](const at::Tensor& x) { return value(x, in.k, in.v); }},
                 {"k", in.k, g.dk, [=](const at::Tensor& x) { return value(in.q, x, in.v); }},
                 {"v", in.v, g.dv, [=](const at::Tensor& x) { return value(in.q, in.k, x); }}},
      .run = [=] { backward(); },
      .bytes = 2 * bytes_of({in.q, in.k, in.v, in.dout}),
      .flops = 10 * static_cast<double>(size.columns) * in.pairs};
}

// With sinks about as large as the sums of scores.
AttentionResult attend_with_sinks(const AttentionInput& in, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                                  Sight sight) {
  AttentionResult result = attention(q, k, v, {in.offsets, in.scale, sight});
  add_attention_sinks_(result, sinks);
  return result;
}

template <Sight kSight>
OpCase attention_sinks_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kSight);
  const at::Tensor sinks = make.random({size.third}, 3.0);
  const reference::Attention expected = reference::attention(
      leaf(in.q), leaf(in.k), leaf(in.v), in.offsets, in.scale, 0, kSight.window, leaf(sinks));
  const AttentionResult found = attend_with_sinks(in, in.q, in.k, in.v, sinks, kSight);
  return {.comparisons = {{"out", found.out, expected.out}, {"lse", found.lse, expected.lse}},
          .run = [=] { add_attention_sinks_(found, sinks); },
          .bytes = 2 * bytes_of({found.out, found.lse})};
}

template <Sight kSight>
OpCase attention_sinks_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kSight);
  const at::Tensor sinks = make.random({size.third}, 3.0);
  const at::Tensor q64 = leaf(in.q), k64 = leaf(in.k), v64 = leaf(in.v), s64 = leaf(sinks);
  torch::autograd::backward(
      {reference::attention(q64, k64, v64, in.offsets, in.scale, 0, kSight.window, s64).out},
      {wide(in.dout)});
  const AttentionResult r = attend_with_sinks(in, in.q, in.k, in.v, sinks, kSight);
  const AttentionGradients g =
      attention_backward(in.dout, in.q, in.k, in.v, r, {in.offsets, in.scale, kSight});
  const at::Tensor ds = attention_sinks_gradient(in.dout, r, sinks);
  const auto value = [=](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& s) {
    return weighted(attend_with_sinks(in, q, k, v, s, kSight).out, in.dout);
  };
  return {
      .comparisons = {{"dq", g.dq, q64.grad()},
                      {"dk", g.dk, k64.grad()},
                      {"dv", g.dv, v64.grad()},
                      {"dsinks", ds, s64.grad()}},
      .slopes =
          {{"q", in.q, g.dq, [=](const at::Tensor& x) { return value(x, in.k, in.v, sinks); }},
           {"k", in.k, g.dk, [=](const at::Tensor& x) { return value(in.q, x, in.v, sinks); }},
           {"v", in.v, g.dv, [=](const at::Tensor& x) { return value(in.q, in.k, x, sinks); }},
           {"sinks", sinks, ds, [=](const at::Tensor& x) { return value(in.q, in.k, in.v, x); }}},
      .run = [=] { attention_sinks_gradient(in.dout, r, sinks); },
      .bytes = bytes_of({in.dout, r.out, r.lse})};
}

}  // namespace

std::vector<OpRow> attention_ops() {
  const std::vector<OpSize> documents = {
      {7, 3, 2}, {40, 7, 4}, {300, 17, 6}, {257, 64, 8}, {90, 128, 4}};
  const OpSize timed{2048, 64, 8};
  constexpr Sight kCausal{}, kWindow{.window = 33}, kBothWays{.is_causal = false},
      kWindowBothWays{.window = 33, .is_causal = false};
  return {
      {"attention", kBoth, documents, timed, attention_case<kCausal>},
      {"attention_backward", kBoth, documents, timed, attention_backward_case<kCausal>},
      {"attention_window", kBoth, documents, timed, attention_case<kWindow>},
      {"attention_window_backward", kBoth, documents, timed, attention_backward_case<kWindow>},
      {"attention_both_ways", kBoth, documents, timed, attention_case<kBothWays>},
      {"attention_both_ways_backward", kBoth, documents, timed, attention_backward_case<kBothWays>},
      {"attention_window_both_ways", kBoth, documents, timed, attention_case<kWindowBothWays>},
      {"attention_window_both_ways_backward", kBoth, documents, timed,
       attention_backward_case<kWindowBothWays>},
      {"attention_sinks", kBoth, documents, timed, attention_sinks_case<kCausal>},
      {"attention_sinks_backward", kBoth, documents, timed,
       attention_sinks_backward_case<kWindow>}};
}

}  // namespace strata::ops
