// Times ops on rows of tokens and on flat shards against their ATen equivalents. GB/s counts each
// tensor once.
#include "ops_bench.h"

#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "strata/ops/adamw.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/norm_rope.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/row_sums.h"
#include "strata/ops/square_sum.h"
#include "strata/ops/swiglu.h"

namespace strata::bench {
namespace {

void BM_swiglu(State& state) {
  const at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  const at::Tensor up = at::randn_like(gate);
  for (auto _ : state) ops::swiglu(gate, up);
  report_bytes(state, 3.0 * gate.nbytes());
}
void BM_swiglu_aten(State& state) {
  const at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  const at::Tensor up = at::randn_like(gate);
  for (auto _ : state) at::silu(gate) * up;
  report_bytes(state, 3.0 * gate.nbytes());
}
void BM_swiglu_backward(State& state) {
  const at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  const at::Tensor up = at::randn_like(gate), dy = at::randn_like(gate);
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
  for (auto _ : state) ops::swiglu_backward(dy, gate, up, dgate, dup);
  report_bytes(state, 5.0 * gate.nbytes());
}
void BM_swiglu_backward_aten(State& state) {
  const at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  const at::Tensor up = at::randn_like(gate), dy = at::randn_like(gate);
  for (auto _ : state) {
    at::Tensor dup = dy * at::silu(gate);
    at::Tensor dgate = at::silu_backward(dy * up, gate);
    benchmark::DoNotOptimize(dgate);
  }
  report_bytes(state, 5.0 * gate.nbytes());
}

void BM_weighted_swiglu_backward(State& state) {
  at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  at::Tensor up = at::randn_like(gate);
  const at::Tensor dy = at::randn_like(gate), weights = at::rand({kTokens});
  for (auto _ : state) ops::weighted_swiglu_backward(dy, weights, gate, up, gate, up);
  report_bytes(state, 5.0 * gate.nbytes());
}
void BM_weighted_swiglu_backward_aten(State& state) {
  const at::Tensor gate = at::randn({kTokens, kIntermediate}).to(storage(state));
  const at::Tensor up = at::randn_like(gate), dy = at::randn_like(gate);
  const at::Tensor weights = at::rand({kTokens, 1});
  for (auto _ : state) {
    const at::Tensor silu = at::silu(gate);
    at::Tensor dweights = (silu * up).mul_(dy).sum(at::IntArrayRef{1}, false, at::kFloat);
    const at::Tensor scaled = dy * weights.to(dy.scalar_type());
    at::Tensor dup = scaled * silu;
    at::Tensor dgate = at::silu_backward(scaled * up, gate);
    benchmark::DoNotOptimize(dgate);
  }
  report_bytes(state, 5.0 * gate.nbytes());
}

// Eight rows a token, each times its weight.
constexpr int64_t kRowsPerToken = 8;
struct TokenRows {
  at::Tensor x, place, weights;
  explicit TokenRows(at::ScalarType type)
      : x(at::randn({kRowsPerToken * kTokens, kHidden}).to(type)),
        place(at::randperm(kRowsPerToken * kTokens, at::kLong)),
        weights(at::rand({kTokens, kRowsPerToken})) {}
  double bytes() const { return x.nbytes() * (1.0 + 1.0 / kRowsPerToken); }
};
void BM_row_sums(State& state) {
  const TokenRows rows(storage(state));
  for (auto _ : state) ops::row_sums(rows.x, rows.place, kTokens, rows.weights);
  report_bytes(state, rows.bytes());
}
void BM_row_sums_aten(State& state) {
  const TokenRows rows(storage(state));
  for (auto _ : state) {
    at::Tensor sums = at::zeros({kTokens, kHidden});
    for (int64_t j = 0; j < kRowsPerToken; ++j) {
      sums.addcmul_(rows.x.index_select(0, rows.place.narrow(0, j * kTokens, kTokens)),
                    rows.weights.narrow(1, j, 1));
    }
    benchmark::DoNotOptimize(sums.to(rows.x.scalar_type()));
  }
  report_bytes(state, rows.bytes());
}

void BM_rms_norm(State& state) {
  const at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor weight = at::ones({kHidden}, x.options());
  for (auto _ : state) ops::rms_norm(x, weight, 1e-5);
  report_bytes(state, 2.0 * x.nbytes());
}
void BM_rms_norm_aten(State& state) {
  const at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor weight = at::ones({kHidden}, x.options());
  for (auto _ : state) at::rms_norm(x, {kHidden}, weight, 1e-5);
  report_bytes(state, 2.0 * x.nbytes());
}
void BM_rms_norm_backward(State& state) {
  const at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor weight = at::ones({kHidden}, x.options()), dy = at::randn_like(x);
  const at::Tensor rstd = ops::rms_norm(x, weight, 1e-5).rstd, dweight = at::empty_like(weight);
  for (auto _ : state) ops::rms_norm_backward(dy, x, weight, rstd, dweight, 0);
  report_bytes(state, 3.0 * x.nbytes());
}
void BM_rms_norm_backward_aten(State& state) {
  at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state)).set_requires_grad(true);
  at::Tensor weight = at::ones({kHidden}, x.options()).set_requires_grad(true);
  const at::Tensor y = at::rms_norm(x, {kHidden}, weight, 1e-5), dy = at::randn_like(y);
  for (auto _ : state) torch::autograd::grad({y}, {x, weight}, {dy}, /*retain_graph=*/true);
  report_bytes(state, 3.0 * x.nbytes());
}

// Queries, and half as many heads of keys.
struct HeadsOfBoth {
  at::Tensor q, k, weight, cos, sin;
  explicit HeadsOfBoth(const State& state) {
    q = at::randn({kTokens, kQueryHeads * kChannels}).to(storage(state));
    k = at::randn({kTokens, kQueryHeads / 2 * kChannels}).to(storage(state));
    weight = at::ones({kChannels}, q.options());
    const at::Tensor angles = at::randn({kTokens, kChannels / 2});
    cos = angles.cos();
    sin = angles.sin();
  }
  double bytes() const { return 2.0 * static_cast<double>(q.nbytes() + k.nbytes()); }
};
void BM_norm_rope(State& state) {
  const HeadsOfBoth in(state);
  for (auto _ : state) {
    ops::norm_rope({in.q, in.weight}, {in.k, in.weight}, in.cos, in.sin, 1e-6,
                   ops::RmsNormKind::kLlama);
  }
  report_bytes(state, in.bytes());
}
void BM_norm_rope_aten(State& state) {
  const HeadsOfBoth in(state);
  const at::Tensor cos = at::cat({in.cos, in.cos}, -1).to(in.q.scalar_type()).unsqueeze(1);
  const at::Tensor sin = at::cat({in.sin, in.sin}, -1).to(in.q.scalar_type()).unsqueeze(1);
  for (auto _ : state) {
    for (const at::Tensor& x : {in.q, in.k}) {
      const at::Tensor normed =
          at::rms_norm(x.view({kTokens, -1, kChannels}), {kChannels}, in.weight, 1e-6);
      const auto halves = normed.chunk(2, -1);
      at::Tensor y = normed * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
      benchmark::DoNotOptimize(y);
    }
  }
  report_bytes(state, in.bytes());
}

void BM_rope(State& state) {
  at::Tensor x = at::randn({kTokens, kQueryHeads, kChannels}).to(storage(state));
  const at::Tensor angles = at::randn({kTokens, kChannels / 2});
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  for (auto _ : state) ops::apply_rope_(x, cos, sin, /*inverse=*/false);
  report_bytes(state, 2.0 * x.nbytes());
}
void BM_rope_aten(State& state) {
  at::Tensor x = at::randn({kTokens, kQueryHeads, kChannels}).to(storage(state));
  const at::Tensor angles = at::randn({kTokens, 1, kChannels / 2});
  const at::Tensor cos = at::cat({angles, angles}, -1).cos().to(x.scalar_type());
  const at::Tensor sin = at::cat({angles, angles}, -1).sin().to(x.scalar_type());
  for (auto _ : state) {
    const auto halves = x.chunk(2, -1);
    at::Tensor y = x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
    benchmark::DoNotOptimize(y);
  }
  report_bytes(state, 2.0 * x.nbytes());
}

void BM_dropout(State& state) {
  const at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor keys = at::arange(kTokens, at::kLong);
  for (auto _ : state) ops::dropout(x, 0.1, keys, 7);
  report_bytes(state, 2.0 * x.nbytes());
}
void BM_dropout_aten(State& state) {
  const at::Tensor x = at::randn({kTokens, kHidden}).to(storage(state));
  for (auto _ : state) at::dropout(x, 0.1, true);
  report_bytes(state, 2.0 * x.nbytes());
}

void BM_embedding_backward(State& state) {
  const at::Tensor dy = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor ids = at::randint(kVocabulary, {kTokens}, at::kLong);
  at::Tensor dweight = at::empty({kVocabulary, kHidden});
  for (auto _ : state) ops::embedding_backward(dy, ids, dweight, 0);
  report_bytes(state, double(dy.nbytes()) + dweight.nbytes());
}
void BM_embedding_backward_aten(State& state) {
  const at::Tensor dy = at::randn({kTokens, kHidden}).to(storage(state));
  const at::Tensor ids = at::randint(kVocabulary, {kTokens}, at::kLong);
  for (auto _ : state) at::embedding_dense_backward(dy, ids, kVocabulary, -1, false);
  report_bytes(state, double(dy.nbytes()) + 4.0 * kVocabulary * kHidden);
}

constexpr int64_t kShard = 4 << 20;
void BM_adamw(State& state) {
  at::Tensor p = at::randn({kShard}), m = at::zeros({kShard}), v = at::zeros({kShard});
  const at::Tensor g = at::randn({kShard});
  for (auto _ : state) ops::adamw_(p, g, m, v, {1e-4, 0.9, 0.999, 1e-8, 0.01, 10, 1.0f});
  report_bytes(state, 7.0 * 4 * kShard);
}
void BM_adamw_aten(State& state) {
  at::Tensor p = at::randn({kShard}), m = at::zeros({kShard}), v = at::zeros({kShard});
  at::Tensor g = at::randn({kShard}), step = at::full({}, 10.0f);
  for (auto _ : state) {
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
  report_bytes(state, 7.0 * 4 * kShard);
}
void BM_square_sum(State& state) {
  const at::Tensor g = at::randn({kShard});
  for (auto _ : state) benchmark::DoNotOptimize(ops::square_sum(g));
  report_bytes(state, 4.0 * kShard);
}
void BM_square_sum_aten(State& state) {
  const at::Tensor g = at::randn({kShard});
  for (auto _ : state) benchmark::DoNotOptimize(at::linalg_vector_norm(g));
  report_bytes(state, 4.0 * kShard);
}

BENCH_BOTH(BM_swiglu);
BENCH_BOTH(BM_swiglu_backward);
BENCH_BOTH(BM_weighted_swiglu_backward);
BENCH_BOTH(BM_row_sums);
BENCH_BOTH(BM_rms_norm);
BENCH_BOTH(BM_rms_norm_backward);
BENCH_BOTH(BM_rope);
BENCH_BOTH(BM_norm_rope);
BENCH_BOTH(BM_dropout);
BENCH_BOTH(BM_embedding_backward);
BENCH_FP32(BM_adamw);
BENCH_FP32(BM_square_sum);

}  // namespace
}  // namespace strata::bench
