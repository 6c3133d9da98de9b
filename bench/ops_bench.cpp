// Times each op against its ATen equivalent on the shapes of a small Llama (T = 2048 tokens, 8
// query heads of 64 channels, H = 512, I = 1376, V = 8192), one thread.
// GFLOPS counts the products of visible pairs only; GB/s each tensor once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "strata/ops/adamw.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/row_sums.h"
#include "strata/ops/square_sum.h"
#include "strata/ops/swiglu.h"

namespace {

using benchmark::Counter;
using benchmark::State;
namespace ops = strata::ops;

constexpr int64_t kTokens = 2048, kQueryHeads = 8, kChannels = 64;
constexpr int64_t kHidden = 512, kIntermediate = 1376, kVocabulary = 8192, kChunk = 512;

at::ScalarType storage(const State& state) { return state.range(0) ? at::kBFloat16 : at::kFloat; }

void report_flops(State& state, double flops) {
  state.counters["GFLOPS"] = Counter(flops * state.iterations() / 1e9, Counter::kIsRate);
}
void report_bytes(State& state, double bytes) {
  state.counters["GB/s"] = Counter(bytes * state.iterations() / 1e9, Counter::kIsRate);
}

// Arguments: bf16, query heads, kv heads, channels, tokens of a document.
struct AttentionCase {
  explicit AttentionCase(const State& state)
      : type(storage(state)),
        heads(state.range(1)),
        kv_heads(state.range(2)),
        channels(state.range(3)),
        length(state.range(4)),
        tokens(std::max(kTokens, length)),
        scale(1 / std::sqrt(double(channels))) {
    for (int64_t end = 0; end <= tokens; end += length) offsets.push_back(end);
    q = at::randn({tokens, heads, channels}).to(type);
    k = at::randn({tokens, kv_heads, channels}).to(type);
    v = at::randn({tokens, kv_heads, channels}).to(type);
  }
  // Of `products` products: 2 forward, 5 backward.
  double flops(int products) const {
    return products * 2.0 * double(channels * tokens * heads) * double(length + 1) / 2;
  }
  // [documents, heads, tokens, channels], as scaled_dot_product_attention takes it.
  at::Tensor batched(const at::Tensor& x) const {
    return x.view({tokens / length, length, x.size(1), x.size(2)}).transpose(1, 2);
  }
  at::Tensor aten() const {
    return at::scaled_dot_product_attention(batched(q), batched(k), batched(v), {}, 0.0, true,
                                            scale, /*enable_gqa=*/true);
  }

  at::ScalarType type;
  int64_t heads, kv_heads, channels, length, tokens;
  double scale;
  std::vector<int64_t> offsets;
  at::Tensor q, k, v;
};

void BM_attention(State& state) {
  const AttentionCase x(state);
  for (auto _ : state) ops::attention(x.q, x.k, x.v, x.offsets, x.scale);
  report_flops(state, x.flops(2));
}
void BM_attention_aten(State& state) {
  const AttentionCase x(state);
  for (auto _ : state) x.aten();
  report_flops(state, x.flops(2));
}
void BM_attention_backward(State& state) {
  const AttentionCase x(state);
  const auto r = ops::attention(x.q, x.k, x.v, x.offsets, x.scale);
  const at::Tensor dout = at::randn_like(x.q);
  for (auto _ : state) {
    ops::attention_backward(dout, x.q, x.k, x.v, r.out, r.lse, x.offsets, x.scale);
  }
  report_flops(state, x.flops(5));
}
void BM_attention_backward_aten(State& state) {
  AttentionCase x(state);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad(true);
  const at::Tensor out = x.aten();
  const at::Tensor dout = at::randn_like(out);
  for (auto _ : state) {
    torch::autograd::grad({out}, {x.q, x.k, x.v}, {dout}, /*retain_graph=*/true);
  }
  report_flops(state, x.flops(5));
}
void attention_cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"bf16", "heads", "kv", "channels", "length"})->Unit(benchmark::kMillisecond);
  for (const int64_t bf16 : {0, 1}) b->Args({bf16, 8, 4, 64, 512});
  b->Args({0, 8, 8, 64, 512});
  b->Args({0, 8, 2, 64, 256});
  b->Args({0, 8, 2, 128, 512});
  b->Args({0, 8, 2, 64, 2048});
  b->Args({1, 8, 2, 64, 2048});
  b->Args({1, 8, 2, 128, 8192});
}

// y = x W^T, dx = dy W and dW = dy^T x of the gate projection, in one round.
struct Linear {
  explicit Linear(at::ScalarType type)
      : x(at::randn({kTokens, kHidden}).to(type)),
        weight(at::randn({kIntermediate, kHidden}).to(type)),
        y(at::empty({kTokens, kIntermediate}, x.options())),
        dx(at::empty_like(x)),
        dweight(at::empty_like(weight)) {}
  at::Tensor x, weight, y, dx, dweight;
};
void BM_matmul(State& state) {
  ops::choose_cpu_products(ops::CpuProducts::kOwn);
  Linear l(storage(state));
  for (auto _ : state) {
    ops::matmul_into(l.y, l.x, l.weight, {.b = true}, 0);
    ops::matmul_into(l.dx, l.y, l.weight, {}, 0);
    ops::matmul_into(l.dweight, l.y, l.x, {.a = true}, 0);
  }
  report_flops(state, 6.0 * kTokens * kHidden * kIntermediate);
}
void BM_matmul_aten(State& state) {
  Linear l(storage(state));
  for (auto _ : state) {
    at::mm_out(l.y, l.x, l.weight.t());
    at::mm_out(l.dx, l.y, l.weight);
    at::mm_out(l.dweight, l.y.t(), l.x);
  }
  report_flops(state, 6.0 * kTokens * kHidden * kIntermediate);
}

// Arguments: bf16, tokens: a decoder's step and an expert with few of them. A weight is read from
// memory and used that often.
struct FewRows {
  explicit FewRows(const State& state)
      : x(at::randn({state.range(1), 4096}).to(storage(state))),
        weight(at::randn({8192, 4096}).to(storage(state))) {}
  at::Tensor x, weight;
};
void BM_matmul_few_rows(State& state) {
  ops::choose_cpu_products(ops::CpuProducts::kOwn);
  const FewRows f(state);
  for (auto _ : state) benchmark::DoNotOptimize(ops::matmul(f.x, f.weight, {.b = true}));
  report_bytes(state, double(f.weight.nbytes()));
}
void BM_matmul_few_rows_aten(State& state) {
  const FewRows f(state);
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(f.x, f.weight.t()));
  report_bytes(state, double(f.weight.nbytes()));
}

void BM_cross_entropy(State& state) {
  const at::Tensor logits = at::randn({kChunk, kVocabulary}) * 3;
  const at::Tensor targets = at::randint(kVocabulary, {kChunk}, at::kLong);
  for (auto _ : state) ops::cross_entropy_(logits, targets, 1e-3f, /*want_gradient=*/true);
  report_bytes(state, 2.0 * 4 * kChunk * kVocabulary);
}
void BM_cross_entropy_aten(State& state) {
  const at::Tensor logits = at::randn({kChunk, kVocabulary}) * 3;
  const at::Tensor targets = at::randint(kVocabulary, {kChunk}, at::kLong);
  for (auto _ : state) {
    const at::Tensor log_p = at::log_softmax(logits, -1);
    at::Tensor loss = at::nll_loss(log_p, targets);
    at::Tensor gradient = log_p.exp_();
    gradient.scatter_add_(1, targets.unsqueeze(1), at::full({kChunk, 1}, -1.0f));
    gradient.mul_(1e-3f);
    benchmark::DoNotOptimize(loss);
  }
  report_bytes(state, 2.0 * 4 * kChunk * kVocabulary);
}

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

// Argument: 0 fp32, 1 bf16.
#define BENCH_BOTH(name)                                                           \
  BENCHMARK(name)->ArgName("bf16")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond); \
  BENCHMARK(name##_aten)->ArgName("bf16")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)
#define BENCH_FP32(name)                          \
  BENCHMARK(name)->Unit(benchmark::kMillisecond); \
  BENCHMARK(name##_aten)->Unit(benchmark::kMillisecond)
BENCHMARK(BM_attention)->Apply(attention_cases);
BENCHMARK(BM_attention_aten)->Apply(attention_cases);
BENCHMARK(BM_attention_backward)->Apply(attention_cases);
BENCHMARK(BM_attention_backward_aten)->Apply(attention_cases);
BENCH_BOTH(BM_matmul);
BENCHMARK(BM_matmul_few_rows)->ArgsProduct({{0, 1}, {1, 3, 8, 24}})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_matmul_few_rows_aten)
    ->ArgsProduct({{0, 1}, {1, 3, 8, 24}})
    ->Unit(benchmark::kMillisecond);
BENCH_FP32(BM_cross_entropy);
BENCH_BOTH(BM_swiglu);
BENCH_BOTH(BM_swiglu_backward);
BENCH_BOTH(BM_weighted_swiglu_backward);
BENCH_BOTH(BM_row_sums);
BENCH_BOTH(BM_rms_norm);
BENCH_BOTH(BM_rms_norm_backward);
BENCH_BOTH(BM_rope);
BENCH_BOTH(BM_dropout);
BENCH_BOTH(BM_embedding_backward);
BENCH_FP32(BM_adamw);
BENCH_FP32(BM_square_sum);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
