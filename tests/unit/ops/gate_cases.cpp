#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/clamped_swiglu.h"
#include "strata/ops/swiglu.h"

namespace strata::ops {
namespace {

// A gated activation as the op has it and as the reference has it.
struct Swiglu {
  static constexpr auto kForward = swiglu, kExpected = reference::swiglu;
  static constexpr auto kBackward = swiglu_backward;
};
struct Geglu {
  static constexpr auto kForward = geglu, kExpected = reference::geglu;
  static constexpr auto kBackward = geglu_backward;
};

// Gate and up are halves of one buffer.
template <typename Gate>
OpCase gated_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor fused = make.random({size.rows, 2 * size.columns}, 3.0);
  const at::Tensor gate = fused.narrow(1, 0, size.columns);
  const at::Tensor up = fused.narrow(1, size.columns, size.columns);
  return {.comparisons = {{"y", Gate::kForward(gate, up), Gate::kExpected(leaf(gate), leaf(up))}},
          .run = [=] { Gate::kForward(gate, up); },
          .bytes = 1.5 * bytes_of({fused})};
}

template <typename Gate>
OpCase gated_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor gate = make.random({size.rows, size.columns}, 3.0);
  const at::Tensor up = make.random(gate.sizes()), dy = make.random(gate.sizes());
  const at::Tensor g64 = leaf(gate), u64 = leaf(up);
  torch::autograd::backward({Gate::kExpected(g64, u64)}, {wide(dy)});
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  Gate::kBackward(dy, gate, up, dgate, dup);
  at::Tensor own_gate = gate.clone(), own_up = up.clone();
  Gate::kBackward(dy, own_gate, own_up, own_gate, own_up);
  return {.comparisons = {{"dgate", dgate, g64.grad()},
                          {"dup", dup, u64.grad()},
                          {"dgate in place", own_gate, g64.grad()},
                          {"dup in place", own_up, u64.grad()}},
          .slopes = {{"gate", gate, dgate,
                      [=](const at::Tensor& v) { return weighted(Gate::kForward(v, up), dy); }},
                     {"up", up, dup,
                      [=](const at::Tensor& v) { return weighted(Gate::kForward(gate, v), dy); }}},
          .run = [=]() mutable { Gate::kBackward(dy, gate, up, dgate, dup); },
          .bytes = 5 * bytes_of({gate})};
}

OpCase weighted_swiglu_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor gate = make.random({size.rows, size.columns}, 3.0);
  const at::Tensor up = make.random(gate.sizes()), dy = make.random(gate.sizes());
  const at::Tensor weights = Maker{at::kFloat, device}.random({size.rows});
  const at::Tensor g64 = leaf(gate), u64 = leaf(up), w64 = leaf(weights);
  torch::autograd::backward({w64.unsqueeze(1) * reference::swiglu(g64, u64)}, {wide(dy)});
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  const at::Tensor dweights = weighted_swiglu_backward(dy, weights, gate, up, dgate, dup);
  at::Tensor own_gate = gate.clone(), own_up = up.clone();
  const at::Tensor again =
      weighted_swiglu_backward(dy, weights, own_gate, own_up, own_gate, own_up);
  const auto value = [=](const at::Tensor& w, const at::Tensor& g, const at::Tensor& u) {
    return weighted(wide(w).unsqueeze(1) * wide(swiglu(g, u)), dy);
  };
  return {
      .comparisons = {{"dgate", dgate, g64.grad()},
                      {"dup", dup, u64.grad()},
                      {"dweights", dweights, w64.grad()},
                      {"dgate in place", own_gate, g64.grad()},
                      {"dup in place", own_up, u64.grad()},
                      {"dweights in place", again, w64.grad()}},
      .slopes = {{"gate", gate, dgate, [=](const at::Tensor& v) { return value(weights, v, up); }},
                 {"up", up, dup, [=](const at::Tensor& v) { return value(weights, gate, v); }},
                 {"weights", weights, dweights,
                  [=](const at::Tensor& v) { return value(v, gate, up); }}},
      .run = [=]() mutable { weighted_swiglu_backward(dy, weights, gate, up, dgate, dup); },
      .bytes = 5 * bytes_of({gate})};
}

// A limit that a third of the values are beyond.
constexpr ClampedGate kClamped{.alpha = 1.5f, .limit = 3.0f};

OpCase clamped_swiglu_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const at::Tensor both = Maker{type, device}.random({size.rows, 2 * size.columns}, 3.0);
  return {.comparisons = {{"y", clamped_swiglu(both, kClamped),
                           reference::clamped_swiglu(leaf(both), kClamped.alpha, kClamped.limit)}},
          .run = [=] { clamped_swiglu(both, kClamped); },
          .bytes = 1.5 * bytes_of({both})};
}

OpCase clamped_swiglu_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  at::Tensor both = make.random({size.rows, 2 * size.columns}, 3.0);
  // At a limit there is no slope.
  both = both + 0.3 * ((both.abs() - kClamped.limit).abs() < 0.1).to(type);
  const at::Tensor dy = make.random({size.rows, size.columns}), both64 = leaf(both);
  torch::autograd::backward({reference::clamped_swiglu(both64, kClamped.alpha, kClamped.limit)},
                            {wide(dy)});
  const at::Tensor own = both.clone();
  clamped_swiglu_backward_(own, dy, kClamped);
  return {
      .comparisons = {{"gate and up", own, both64.grad()}},
      .slopes = {{"gate and up", both, own,
                  [=](const at::Tensor& v) { return weighted(clamped_swiglu(v, kClamped), dy); }}},
      .run = [=] { clamped_swiglu_backward_(own, dy, kClamped); },
      .bytes = 2.5 * bytes_of({both})};
}

}  // namespace

std::vector<OpRow> gate_ops() {
  const OpSize timed{2048, 1376};
  return {{"swiglu", kBoth, kPlainSizes, timed, gated_case<Swiglu>},
          {"swiglu_backward", kBoth, kPlainSizes, timed, gated_backward_case<Swiglu>},
          {"weighted_swiglu_backward", kBoth, kPlainSizes, timed, weighted_swiglu_backward_case},
          {"geglu", kBoth, kPlainSizes, timed, gated_case<Geglu>},
          {"geglu_backward", kBoth, kPlainSizes, timed, gated_backward_case<Geglu>},
          {"clamped_swiglu", kBoth, kPlainSizes, timed, clamped_swiglu_case},
          {"clamped_swiglu_backward", kBoth, kPlainSizes, timed, clamped_swiglu_backward_case}};
}

}  // namespace strata::ops
