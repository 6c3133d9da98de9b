// One function per op; the oracle is reference.h, in double and differentiated by autograd.
#include "op_table.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "devices.h"
#include "reference.h"
#include "strata/ops/adamw.h"
#include "strata/ops/attention.h"
#include "strata/ops/attention_sinks.h"
#include "strata/ops/clamped_swiglu.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/layer_norm.h"
#include "strata/ops/matmul.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/row_sums.h"
#include "strata/ops/square_sum.h"
#include "strata/ops/swiglu.h"

namespace strata::ops {
namespace {

// Of one device; the same values on every device.
struct Maker {
  at::ScalarType type;
  at::Device device;
  at::Tensor random(at::IntArrayRef shape, double scale = 1.0) const {
    return (at::randn(shape, at::kDouble) * scale).to(type).to(device);
  }
  at::Tensor integers(int64_t below, int64_t count) const {
    return at::randint(below, {count}, at::kLong).to(device);
  }
};

// A leaf in double on the CPU with the same values.
at::Tensor leaf(const at::Tensor& x) { return wide(x).clone().set_requires_grad(true); }

double weighted(const at::Tensor& y, const at::Tensor& dy) {
  return (wide(y) * wide(dy)).sum().item<double>();
}

double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

// The reference of a kind of norm.
at::Tensor norm_of(RmsNormKind kind, const at::Tensor& x, const at::Tensor& weight) {
  return kind == RmsNormKind::kGemma ? reference::gemma_norm(x, weight, 1e-6)
                                     : reference::rms_norm(x, weight, 1e-6);
}

template <RmsNormKind kKind>
OpCase rms_norm_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.columns});
  const at::Tensor y = norm_of(kKind, leaf(x), leaf(weight));
  return {.comparisons = {{"y", rms_norm(x, weight, 1e-6, kKind).y, y}},
          .run = [=] { rms_norm(x, weight, 1e-6, kKind); },
          .bytes = 2 * bytes_of({x})};
}

template <RmsNormKind kKind>
OpCase rms_norm_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor weight = make.random({size.columns}), residual = make.random(x.sizes());
  const at::Tensor x64 = leaf(x), w64 = leaf(weight);
  torch::autograd::backward({norm_of(kKind, x64, w64)}, {wide(dy)});
  const at::Tensor rstd = rms_norm(x, weight, 1e-6, kKind).rstd;
  const at::Tensor dweight = at::full_like(weight, 7), added = at::full_like(weight, 1);
  const at::Tensor dx = rms_norm_backward(dy, x, weight, rstd, dweight, 0, kKind);
  const at::Tensor both = rms_norm_backward_add(dy, x, weight, rstd, added, 1, residual, kKind);
  const at::Tensor frozen = rms_norm_backward(dy, x, weight, rstd, at::Tensor(), 0, kKind);
  const auto value = [=](const at::Tensor& a, const at::Tensor& b) {
    return weighted(rms_norm(a, b, 1e-6, kKind).y, dy);
  };
  return {.comparisons = {{"dx", dx, x64.grad()},
                          {"dx of a frozen weight", frozen, x64.grad()},
                          {"dx + residual", both, x64.grad() + wide(residual)},
                          {"dweight", dweight, w64.grad()},
                          {"dweight added", added, w64.grad() + 1}},
          .slopes = {{"x", x, dx, [=](const at::Tensor& v) { return value(v, weight); }},
                     {"weight", weight, dweight, [=](const at::Tensor& v) { return value(x, v); }}},
          .run = [=] { rms_norm_backward(dy, x, weight, rstd, dweight, 0, kKind); },
          .bytes = 3 * bytes_of({x})};
}

OpCase layer_norm_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.columns}), bias = make.random({size.columns});
  const at::Tensor y = at::layer_norm(leaf(x), {size.columns}, leaf(weight), leaf(bias), 1e-5);
  return {.comparisons = {{"y", layer_norm(x, weight, bias, 1e-5).y, y}},
          .run = [=] { layer_norm(x, weight, bias, 1e-5); },
          .bytes = 2 * bytes_of({x})};
}

OpCase layer_norm_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor weight = make.random({size.columns}), bias = make.random({size.columns});
  const at::Tensor residual = make.random(x.sizes());
  const at::Tensor x64 = leaf(x), w64 = leaf(weight), b64 = leaf(bias);
  torch::autograd::backward({at::layer_norm(x64, {size.columns}, w64, b64, 1e-5)}, {wide(dy)});
  const LayerNormResult norm = layer_norm(x, weight, bias, 1e-5);
  const auto backward = [=](const LayerNormTarget& of_weight, const LayerNormTarget& of_bias,
                            const at::Tensor& residual_grad) {
    return layer_norm_backward(dy, x, weight, norm.mean, norm.rstd, of_weight, of_bias,
                               residual_grad);
  };
  const at::Tensor dweight = at::full_like(weight, 7), dbias = at::full_like(bias, 7);
  const at::Tensor more_weight = at::full_like(weight, 1), more_bias = at::full_like(bias, 1);
  const at::Tensor dx = backward({dweight, 0}, {dbias, 0}, at::Tensor());
  const at::Tensor both = backward({more_weight, 1}, {more_bias, 1}, residual);
  const at::Tensor frozen = backward({}, {}, at::Tensor());
  const auto value = [=](const at::Tensor& a, const at::Tensor& w, const at::Tensor& b) {
    return weighted(layer_norm(a, w, b, 1e-5).y, dy);
  };
  return {
      .comparisons = {{"dx", dx, x64.grad()},
                      {"dx of a frozen norm", frozen, x64.grad()},
                      {"dx + residual", both, x64.grad() + wide(residual)},
                      {"dweight", dweight, w64.grad()},
                      {"dweight added", more_weight, w64.grad() + 1},
                      {"dbias", dbias, b64.grad()},
                      {"dbias added", more_bias, b64.grad() + 1}},
      .slopes = {{"x", x, dx, [=](const at::Tensor& v) { return value(v, weight, bias); }},
                 {"weight", weight, dweight,
                  [=](const at::Tensor& v) { return value(x, v, bias); }},
                 {"bias", bias, dbias, [=](const at::Tensor& v) { return value(x, weight, v); }}},
      .run =
          [=] {
            backward({dweight, 0}, {dbias, 0}, at::Tensor());
          },
      .bytes = 3 * bytes_of({x})};
}

// Rows are tokens, columns channels of a head, third heads; a view into a wider buffer.
template <RopePairs pairs>
OpCase rope_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor buffer = make.random({size.rows, size.third + 2, size.columns});
  const at::Tensor x = buffer.narrow(1, 1, size.third);
  const at::Tensor angles = at::randn({size.rows, size.columns / 2}, at::kDouble) * 3;
  const at::Tensor cos = angles.cos().to(at::kFloat).to(device);
  const at::Tensor sin = angles.sin().to(at::kFloat).to(device);
  const auto rotated =
      pairs == RopePairs::kHalves ? reference::rope : reference::rope_of_neighbours;
  const at::Tensor expected = rotated(wide(x), angles.cos(), angles.sin());
  const auto turned = [=](const at::Tensor& v, bool inverse) {
    const at::Tensor copy = v.clone();
    apply_rope_(copy, cos, sin, inverse, pairs);
    return copy;
  };
  const at::Tensor before = buffer.clone(), original = x.clone(), dy = make.random(x.sizes());
  apply_rope_(x, cos, sin, /*inverse=*/false, pairs);
  const at::Tensor outside = at::cat({buffer.narrow(1, 0, 1), buffer.narrow(1, size.third + 1, 1)});
  const at::Tensor same = at::cat({before.narrow(1, 0, 1), before.narrow(1, size.third + 1, 1)});
  return {.comparisons = {{"y", x.clone(), expected},
                          {"turned back", turned(x, true), wide(original)},
                          {"neighbours", outside, wide(same)}},
          .slopes = {{"x", original, turned(dy, true),
                      [=](const at::Tensor& v) { return weighted(turned(v, false), dy); }}},
          .run = [=] { apply_rope_(x, cos, sin, /*inverse=*/false, pairs); },
          .bytes = 2 * static_cast<double>(x.numel() * x.element_size())};
}

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

// Third: the rows of a token.
template <bool kWeighted>
OpCase row_sums_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const int64_t num_rows = size.rows * size.third;
  const at::Tensor x = make.random({num_rows, size.columns});
  const at::Tensor place = at::randperm(num_rows, at::kLong);
  const at::Tensor weights = Maker{at::kFloat, device}.random({size.rows, size.third});
  const at::Tensor used = kWeighted ? weights : at::Tensor(), there = place.to(device);
  const at::Tensor parts =
      wide(x).index_select(0, place).view({size.third, size.rows, size.columns});
  const at::Tensor factors = kWeighted ? wide(weights).t().unsqueeze(2) : at::ones({}, at::kDouble);
  return {.comparisons = {{"y", row_sums(x, there, size.rows, used), (parts * factors).sum(0)}},
          .run = [=] { row_sums(x, there, size.rows, used); },
          .bytes = bytes_of({x, x.narrow(0, 0, size.rows)})};
}

template <bool kCapped, bool kSmoothed>
OpCase cross_entropy_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const CrossEntropyOptions options{kCapped ? 8.0f : 0.0f, kSmoothed ? 0.25f : 0.0f};
  const Maker make{type, device};
  const at::Tensor logits = make.random({size.rows, size.columns}, 4.0);
  const at::Tensor targets = at::randint(size.columns, {size.rows}, at::kLong);
  if (size.rows > 2) targets[1] = -100;
  const at::Tensor logits64 = leaf(logits), used = targets != -100;
  const at::Tensor seen = kCapped ? 8 * at::tanh(logits64 / 8) : logits64;
  const at::Tensor log_p = at::log_softmax(seen, -1);
  at::Tensor picked = log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  if (kSmoothed) picked = 0.75 * picked + 0.25 * log_p.mean(-1);
  const at::Tensor loss = -(picked * used).sum();
  torch::autograd::backward({loss * 0.125});
  const at::Tensor entropy = -((log_p.exp() * log_p).sum(-1) * used).sum();
  const at::Tensor correct = ((wide(logits).argmax(-1) == targets) & used).sum();
  const at::Tensor own = logits.clone();
  const at::Tensor untouched = logits.clone();
  const CrossEntropySums plain =
      cross_entropy_(untouched, targets, 0.125f, /*want_gradient=*/false, options);
  if (kCapped) untouched.copy_(logits);  // of capped ones nothing is promised
  const CrossEntropySums sums =
      cross_entropy_(own, targets, 0.125f, /*want_gradient=*/true, options);
  const auto scalar = [](double value) { return at::full({}, value, at::kDouble); };
  return {.comparisons = {{"loss", scalar(sums.loss), loss},
                          {"loss without gradient", scalar(plain.loss), loss},
                          {"entropy", scalar(sums.entropy), entropy},
                          {"correct", scalar(sums.correct), correct.to(at::kDouble)},
                          {"tokens", scalar(static_cast<double>(sums.tokens)),
                           used.sum().to(at::kDouble)},
                          {"logits left alone", untouched, wide(logits)},
                          {"dlogits", own, logits64.grad()}},
          .slopes = {{"logits", logits, own,
                      [=](const at::Tensor& v) {
                        return 0.125 *
                               cross_entropy_(v.clone(), targets, 1.0f, false, options).loss;
                      }}},
          .run = [=] { cross_entropy_(own, targets, 0.125f, /*want_gradient=*/true, options); },
          .bytes = 2 * bytes_of({logits})};
}

// Third: the vocabulary.
OpCase embedding_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor weight = make.random({size.third, size.columns});
  const at::Tensor ids = make.integers(size.third, size.rows);
  const at::Tensor expected = wide(weight).index_select(0, ids.cpu());
  return {.comparisons = {{"y", ops::embedding(weight, ids), expected}},
          .run = [=] { ops::embedding(weight, ids); },
          .bytes = 2 * bytes_of({expected.to(type)})};
}

OpCase embedding_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor dy = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.third, size.columns});
  const at::Tensor ids = make.integers(size.third, size.rows);
  const at::Tensor expected =
      at::zeros(weight.sizes(), at::kDouble).index_add(0, ids.cpu(), wide(dy));
  at::Tensor written = at::full_like(weight, 3.0, at::kFloat), added = at::ones_like(weight);
  embedding_backward(dy, ids, written, 0);
  embedding_backward(dy, ids, added, 1);
  return {.comparisons = {{"dweight", written, expected}, {"dweight added", added, expected + 1}},
          .slopes = {{"weight", weight, written,
                      [=](const at::Tensor& v) { return weighted(ops::embedding(v, ids), dy); }}},
          .run = [=] { embedding_backward(dy, ids, written, 0); },
          .bytes = bytes_of({dy, written})};
}

// The mask is what the op makes of ones; its statistics have tests of their own.
OpCase dropout_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.columns}), dy = make.random(x.sizes());
  const at::Tensor keys = make.integers(1 << 30, size.rows);
  const at::Tensor ones = at::ones_like(x, at::kFloat);
  const at::Tensor kept = ops::dropout(ones, 0.3, keys, 5).cpu() != 0;
  const at::Tensor dx = dropout_backward(dy, 0.3, keys, 5);
  at::Tensor sum = x.clone(), sum_of_another_type = x.to(at::kFloat, false, /*copy=*/true);
  add_dropout_backward_(sum, dy, 0.3, keys, 5);
  add_dropout_backward_(sum_of_another_type, dy, 0.3, keys, 5);
  const at::Tensor expected = wide(dy) * kept / 0.7;
  return {.comparisons = {{"y", ops::dropout(x, 0.3, keys, 5), wide(x) * kept / 0.7},
                          {"dx", dx, expected},
                          {"dx added", sum, wide(x) + expected},
                          {"dx added to fp32", sum_of_another_type, wide(x) + expected}},
          .slopes = {{"x", x, dx,
                      [=](const at::Tensor& v) {
                        return weighted(ops::dropout(v, 0.3, keys, 5), dy);
                      }}},
          .run = [=] { ops::dropout(x, 0.3, keys, 5); },
          .bytes = 2 * bytes_of({x})};
}

OpCase adamw_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor p = make.random({size.rows}), g = make.random({size.rows});
  const at::Tensor m = make.random({size.rows}, 0.1), v = make.random({size.rows}, 0.1).square_();
  const AdamWStep o{.learning_rate = 0.01,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .step = 7,
                    .grad_scale = 0.5f};
  const at::Tensor g64 = wide(g) * 0.5;
  const at::Tensor m64 = wide(m) * o.beta1 + g64 * (1 - o.beta1);
  const at::Tensor v64 = wide(v) * o.beta2 + g64.square() * (1 - o.beta2);
  const at::Tensor root = v64.sqrt() / std::sqrt(1 - std::pow(o.beta2, 7)) + o.eps;
  const at::Tensor p64 = wide(p) * (1 - o.learning_rate * o.weight_decay) -
                         o.learning_rate / (1 - std::pow(o.beta1, 7)) * m64 / root;
  adamw_(p, g, m, v, o);
  return {.comparisons = {{"param", p.clone(), p64},
                          {"exp_avg", m.clone(), m64},
                          {"exp_avg_sq", v.clone(), v64}},
          .run = [=] { adamw_(p, g, m, v, o); },
          .bytes = 7 * bytes_of({p})};
}

OpCase square_sum_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows});
  return {
      .comparisons = {{"sum", at::full({}, square_sum(x), at::kDouble), wide(x).square().sum()}},
      .run = [=] { square_sum(x); },
      .bytes = bytes_of({x})};
}

// y = x w^T [rows, columns] over `third`, and both gradients.
OpCase matmul_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows, size.third});
  const at::Tensor w = make.random({size.columns, size.third});
  const at::Tensor dy = make.random({size.rows, size.columns});
  const at::Tensor x64 = leaf(x), w64 = leaf(w);
  const at::Tensor y64 = at::mm(x64, w64.t());
  torch::autograd::backward({y64}, {wide(dy)});
  const at::Tensor dx = ops::matmul(dy, w), dw = at::empty_like(w, at::kFloat);
  matmul_into(dw, dy, x, {.a = true}, 0);
  const at::Tensor y = at::empty(dy.sizes(), dy.options());
  return {.comparisons = {{"y", ops::matmul(x, w, {.b = true}), y64},
                          {"dx", dx, x64.grad()},
                          {"dw", dw, w64.grad()}},
          .slopes =
              {{"x", x, dx,
                [=](const at::Tensor& v) { return weighted(ops::matmul(v, w, {.b = true}), dy); }},
               {"w", w, dw,
                [=](const at::Tensor& v) { return weighted(ops::matmul(x, v, {.b = true}), dy); }}},
          .run = [=] { matmul_into(y, x, w, {.b = true}, 0); },
          .bytes = bytes_of({x, w, y}),
          .flops = 2.0 * static_cast<double>(size.rows * size.columns * size.third)};
}

// Rows tokens in three documents, columns channels, third query heads on half as many kv heads.
struct AttentionInput {
  at::Tensor q, k, v, dout;
  std::vector<int64_t> offsets;
  double scale, pairs;
};
AttentionInput attention_input(const OpSize& size, const Maker& make, int64_t window) {
  const int64_t kv = (size.third + 1) / 2, cut = size.rows / 3;
  double pairs = 0;
  const std::vector<int64_t> offsets = {0, cut, cut, size.rows};
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (int64_t seen = 1; seen <= offsets[d + 1] - offsets[d]; ++seen) {
      pairs += static_cast<double>(size.third * (window == 0 ? seen : std::min(seen, window)));
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

template <int64_t kWindow>
OpCase attention_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kWindow);
  const reference::Attention expected =
      reference::attention(leaf(in.q), leaf(in.k), leaf(in.v), in.offsets, in.scale, 0, kWindow);
  const AttentionResult found = attention(in.q, in.k, in.v, in.offsets, in.scale, kWindow);
  return {.comparisons = {{"out", found.out, expected.out}, {"lse", found.lse, expected.lse}},
          .run = [=] { attention(in.q, in.k, in.v, in.offsets, in.scale, kWindow); },
          .bytes = bytes_of({in.q, in.k, in.v, found.out}),
          .flops = 4 * static_cast<double>(size.columns) * in.pairs};
}

template <int64_t kWindow>
OpCase attention_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kWindow);
  const at::Tensor q64 = leaf(in.q), k64 = leaf(in.k), v64 = leaf(in.v);
  torch::autograd::backward(
      {reference::attention(q64, k64, v64, in.offsets, in.scale, 0, kWindow).out}, {wide(in.dout)});
  const AttentionResult r = attention(in.q, in.k, in.v, in.offsets, in.scale, kWindow);
  const auto backward = [=] {
    return attention_backward(in.dout, in.q, in.k, in.v, r.out, r.lse, in.offsets, in.scale,
                              kWindow);
  };
  const AttentionGradients g = backward();
  const auto value = [=](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return weighted(attention(q, k, v, in.offsets, in.scale, kWindow).out, in.dout);
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
                                  int64_t window) {
  AttentionResult result = attention(q, k, v, in.offsets, in.scale, window);
  add_attention_sinks_(result, sinks);
  return result;
}

template <int64_t kWindow>
OpCase attention_sinks_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kWindow);
  const at::Tensor sinks = make.random({size.third}, 3.0);
  const reference::Attention expected = reference::attention(
      leaf(in.q), leaf(in.k), leaf(in.v), in.offsets, in.scale, 0, kWindow, leaf(sinks));
  const AttentionResult found = attend_with_sinks(in, in.q, in.k, in.v, sinks, kWindow);
  return {.comparisons = {{"out", found.out, expected.out}, {"lse", found.lse, expected.lse}},
          .run = [=] { add_attention_sinks_(found, sinks); },
          .bytes = 2 * bytes_of({found.out, found.lse})};
}

template <int64_t kWindow>
OpCase attention_sinks_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const AttentionInput in = attention_input(size, make, kWindow);
  const at::Tensor sinks = make.random({size.third}, 3.0);
  const at::Tensor q64 = leaf(in.q), k64 = leaf(in.k), v64 = leaf(in.v), s64 = leaf(sinks);
  torch::autograd::backward(
      {reference::attention(q64, k64, v64, in.offsets, in.scale, 0, kWindow, s64).out},
      {wide(in.dout)});
  const AttentionResult r = attend_with_sinks(in, in.q, in.k, in.v, sinks, kWindow);
  const AttentionGradients g =
      attention_backward(in.dout, in.q, in.k, in.v, r.out, r.lse, in.offsets, in.scale, kWindow);
  const at::Tensor ds = attention_sinks_gradient(in.dout, r, sinks);
  const auto value = [=](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& s) {
    return weighted(attend_with_sinks(in, q, k, v, s, kWindow).out, in.dout);
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

std::vector<OpRow> make_table() {
  const std::vector<at::ScalarType> both = {at::kFloat, at::kBFloat16}, fp32 = {at::kFloat};
  // One channel has no gradient through a norm; odd sizes leave a rest behind every wide register.
  const std::vector<OpSize> norm = {{1, 64}, {3, 7}, {65, 24}, {200, 129}, {33, 512}};
  const std::vector<OpSize> plain = {{1, 1},     {1, 64},   {3, 7}, {65, 24},
                                     {200, 129}, {33, 512}, {0, 8}};
  const std::vector<OpSize> heads = {{1, 2, 1}, {5, 6, 3}, {40, 64, 8}, {17, 34, 2}};
  const std::vector<OpSize> rows_of_tokens = {
      {1, 1, 1}, {3, 7, 2}, {65, 24, 8}, {200, 129, 3}, {33, 512, 4}, {5, 2056, 8}, {0, 8, 2}};
  const std::vector<OpSize> logits = {{1, 2}, {9, 37}, {33, 8191}, {4, 20000}};
  // Of two logits one may be so sure that its loss is rounding.
  const std::vector<OpSize> unsure_logits = {{2, 5}, {9, 37}, {33, 8191}, {4, 20000}};
  const std::vector<OpSize> table = {{1, 1, 11}, {3, 7, 11}, {200, 129, 5}, {33, 512, 90}};
  const std::vector<OpSize> flat = {{1}, {15}, {1000}, {200001}};
  const std::vector<OpSize> products = {{2, 40, 7}, {17, 33, 5}, {100, 31, 257}, {300, 65, 513}};
  const std::vector<OpSize> documents = {
      {7, 3, 2}, {40, 7, 4}, {300, 17, 6}, {257, 64, 8}, {90, 128, 4}};
  const OpSize wide{2048, 1376}, narrow{2048, 512}, shard{4 << 20}, one_table{2048, 512, 8192};
  return {
      {"rms_norm", both, norm, narrow, rms_norm_case<RmsNormKind::kLlama>},
      {"rms_norm_backward", both, norm, narrow, rms_norm_backward_case<RmsNormKind::kLlama>},
      {"gemma_norm", both, norm, narrow, rms_norm_case<RmsNormKind::kGemma>},
      {"gemma_norm_backward", both, norm, narrow, rms_norm_backward_case<RmsNormKind::kGemma>},
      {"olmo_norm", both, norm, narrow, rms_norm_case<RmsNormKind::kOlmo>},
      {"olmo_norm_backward", both, norm, narrow, rms_norm_backward_case<RmsNormKind::kOlmo>},
      {"rope", both, heads, {2048, 64, 8}, rope_case<RopePairs::kHalves>},
      {"rope_of_neighbours", both, heads, {2048, 64, 8}, rope_case<RopePairs::kNeighbours>},
      {"swiglu", both, plain, wide, gated_case<Swiglu>},
      {"swiglu_backward", both, plain, wide, gated_backward_case<Swiglu>},
      {"weighted_swiglu_backward", both, plain, wide, weighted_swiglu_backward_case},
      {"geglu", both, plain, wide, gated_case<Geglu>},
      {"geglu_backward", both, plain, wide, gated_backward_case<Geglu>},
      {"clamped_swiglu", both, plain, wide, clamped_swiglu_case},
      {"clamped_swiglu_backward", both, plain, wide, clamped_swiglu_backward_case},
      {"row_sums", both, rows_of_tokens, {2048, 512, 8}, row_sums_case<false>},
      {"weighted_row_sums", both, rows_of_tokens, {2048, 512, 8}, row_sums_case<true>},
      {"cross_entropy",
       fp32,
       logits,
       {512, 8192},
       cross_entropy_case<false, false>,
       /*narrow_on_gpu=*/true},
      {"capped_cross_entropy",
       fp32,
       unsure_logits,
       {512, 8192},
       cross_entropy_case<true, false>,
       /*narrow_on_gpu=*/true},
      {"smoothed_cross_entropy",
       fp32,
       unsure_logits,
       {512, 8192},
       cross_entropy_case<false, true>,
       /*narrow_on_gpu=*/true},
      {"capped_smoothed_cross_entropy",
       fp32,
       unsure_logits,
       {512, 8192},
       cross_entropy_case<true, true>,
       /*narrow_on_gpu=*/true},
      {"embedding", both, table, one_table, embedding_case},
      {"embedding_backward", both, table, one_table, embedding_backward_case},
      {"dropout", both, plain, narrow, dropout_case},
      {"adamw", fp32, flat, shard, adamw_case},
      {"square_sum", both, flat, shard, square_sum_case},
      {"matmul", both, products, {2048, 1376, 512}, matmul_case},
      {"attention", both, documents, {2048, 64, 8}, attention_case<0>},
      {"attention_backward", both, documents, {2048, 64, 8}, attention_backward_case<0>},
      {"attention_window", both, documents, {2048, 64, 8}, attention_case<33>},
      {"attention_window_backward", both, documents, {2048, 64, 8}, attention_backward_case<33>},
      {"attention_sinks", both, documents, {2048, 64, 8}, attention_sinks_case<0>},
      {"attention_sinks_backward",
       both,
       documents,
       {2048, 64, 8},
       attention_sinks_backward_case<33>},
      {"layer_norm", both, norm, narrow, layer_norm_case},
      {"layer_norm_backward", both, norm, narrow, layer_norm_backward_case}};
}

}  // namespace

std::span<const OpRow> op_table() {
  static const std::vector<OpRow> table = make_table();
  return table;
}

double error_of(const Comparison& comparison) {
  return reference::relative_error(comparison.found, comparison.expected);
}

}  // namespace strata::ops
