// Times each op against its ATen equivalent on the shapes of a small Llama (T = 2048 tokens in four
// documents, 8 query and 4 kv heads of 64 channels, H = 512, I = 1376, V = 8192), one thread.
// GFLOPS counts the products of visible pairs only; GB/s each tensor once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "strata/ops/adamw.h"
#include "strata/ops/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/matmul.h"
#include "strata/ops/rms_norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/square_sum.h"
#include "strata/ops/swiglu.h"

namespace {

using benchmark::Counter;
using benchmark::State;
namespace ops = strata::ops;

constexpr int64_t kTokens = 2048, kDocuments = 4, kQueryHeads = 8, kKvHeads = 4, kChannels = 64;
constexpr int64_t kHidden = 512, kIntermediate = 1376, kVocabulary = 8192, kChunk = 512;

at::ScalarType storage(const State& state) { return state.range(0) ? at::kBFloat16 : at::kFloat; }

void report_flops(State& state, double flops) {
  state.counters["GFLOPS"] = Counter(flops * state.iterations() / 1e9, Counter::kIsRate);
}
void report_bytes(State& state, double bytes) {
  state.counters["GB/s"] = Counter(bytes * state.iterations() / 1e9, Counter::kIsRate);
}

std::vector<int64_t> offsets() {
  std::vector<int64_t> result;
  for (int64_t d = 0; d <= kDocuments; ++d) result.push_back(d * kTokens / kDocuments);
  return result;
}
double visible_pairs() {
  const double length = kTokens / kDocuments;
  return kDocuments * kQueryHeads * length * (length + 1) / 2;
}
const double kScale = 1 / std::sqrt(double(kChannels));

struct Heads {
  at::Tensor q, k, v;
};
Heads random_heads(at::ScalarType type) {
  return {at::randn({kTokens, kQueryHeads, kChannels}).to(type),
          at::randn({kTokens, kKvHeads, kChannels}).to(type),
          at::randn({kTokens, kKvHeads, kChannels}).to(type)};
}
// [documents, heads, tokens, channels], as scaled_dot_product_attention takes it.
at::Tensor batched(const at::Tensor& x) {
  return x.view({kDocuments, kTokens / kDocuments, x.size(1), x.size(2)}).transpose(1, 2);
}

void BM_attention(State& state) {
  const Heads x = random_heads(storage(state));
  const auto documents = offsets();
  for (auto _ : state) ops::attention(x.q, x.k, x.v, documents, kScale);
  report_flops(state, 4.0 * kChannels * visible_pairs());
}
void BM_attention_aten(State& state) {
  const Heads x = random_heads(storage(state));
  const at::Tensor q = batched(x.q), k = batched(x.k), v = batched(x.v);
  for (auto _ : state) {
    at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, kScale, /*enable_gqa=*/true);
  }
  report_flops(state, 4.0 * kChannels * visible_pairs());
}
void BM_attention_backward(State& state) {
  const Heads x = random_heads(storage(state));
  const auto documents = offsets();
  const auto r = ops::attention(x.q, x.k, x.v, documents, kScale);
  const at::Tensor dout = at::randn_like(x.q);
  for (auto _ : state) {
    ops::attention_backward(dout, x.q, x.k, x.v, r.out, r.lse, documents, kScale);
  }
  report_flops(state, 10.0 * kChannels * visible_pairs());
}
void BM_attention_backward_aten(State& state) {
  Heads x = random_heads(storage(state));
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad(true);
  const at::Tensor out = at::scaled_dot_product_attention(
      batched(x.q), batched(x.k), batched(x.v), {}, 0.0, true, kScale, /*enable_gqa=*/true);
  const at::Tensor dout = at::randn_like(out);
  for (auto _ : state) {
    torch::autograd::grad({out}, {x.q, x.k, x.v}, {dout}, /*retain_graph=*/true);
  }
  report_flops(state, 10.0 * kChannels * visible_pairs());
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
BENCH_BOTH(BM_attention);
BENCH_BOTH(BM_attention_backward);
BENCH_BOTH(BM_matmul);
BENCH_FP32(BM_cross_entropy);
BENCH_BOTH(BM_swiglu);
BENCH_BOTH(BM_swiglu_backward);
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
