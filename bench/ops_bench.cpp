// Times each op against its ATen equivalent, one thread: products here, rows in ops_bench_rows.cpp.
// GFLOPS counts the products of visible pairs only; GB/s each tensor once.
#include "ops_bench.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "strata/ops/attention/attention.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/matmul/matmul.h"

namespace strata::bench {
namespace {

constexpr int64_t kChunk = 512;

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
  for (auto _ : state) ops::attention(x.q, x.k, x.v, {x.offsets, x.scale});
  report_flops(state, x.flops(2));
}
void BM_attention_aten(State& state) {
  const AttentionCase x(state);
  for (auto _ : state) x.aten();
  report_flops(state, x.flops(2));
}
void BM_attention_backward(State& state) {
  const AttentionCase x(state);
  const auto r = ops::attention(x.q, x.k, x.v, {x.offsets, x.scale});
  const at::Tensor dout = at::randn_like(x.q);
  for (auto _ : state) {
    ops::attention_backward(dout, x.q, x.k, x.v, r, {x.offsets, x.scale});
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

// The six products of a LoRA branch. Arguments: bf16, which of them, channels, rank. At the ranks
// of LoRA they are bound by what they read and write.
struct Branch {
  explicit Branch(const State& state)
      : x(at::randn({kTokens, state.range(2)}).to(storage(state))),
        a(at::randn({state.range(3), state.range(2)}).to(storage(state))),
        b(at::randn({state.range(2), state.range(3)}).to(storage(state))),
        h(at::randn({kTokens, state.range(3)}).to(storage(state))),
        y(at::randn_like(x)),
        da(at::empty_like(a, at::kFloat)),
        db(at::empty_like(b, at::kFloat)) {}
  at::Tensor x, a, b, h, y, da, db;
};
void run_branch(Branch& t, int64_t product) {
  switch (product) {
    case 0:
      return ops::matmul_into(t.h, t.x, t.a, {.b = true}, 0);
    case 1:
      return ops::matmul_into(t.y, t.h, t.b, {.b = true}, 1);
    case 2:
      return ops::matmul_into(t.db, t.y, t.h, {.a = true}, 0);
    case 3:
      return ops::matmul_into(t.h, t.y, t.b, {}, 0);
    case 4:
      return ops::matmul_into(t.da, t.h, t.x, {.a = true}, 0);
    default:
      return ops::matmul_into(t.y, t.h, t.a, {}, 1);
  }
}
void run_branch_aten(Branch& t, int64_t product) {
  const auto gradient = [](at::Tensor d, const at::Tensor& left, const at::Tensor& right) {
    d.copy_(at::mm(left, right));
  };
  switch (product) {
    case 0:
      return (void)at::mm_out(t.h, t.x, t.a.t());
    case 1:
      return (void)t.y.addmm_(t.h, t.b.t());
    case 2:
      return gradient(t.db, t.y.t(), t.h);
    case 3:
      return (void)at::mm_out(t.h, t.y, t.b);
    case 4:
      return gradient(t.da, t.h.t(), t.x);
    default:
      return (void)t.y.addmm_(t.h, t.a);
  }
}
double flops_of_branch(const State& state) {
  return 2.0 * kTokens * double(state.range(2)) * double(state.range(3));
}
void BM_branch(State& state) {
  ops::choose_cpu_products(ops::CpuProducts::kOwn);
  Branch t(state);
  for (auto _ : state) run_branch(t, state.range(1));
  report_flops(state, flops_of_branch(state));
}
void BM_branch_aten(State& state) {
  Branch t(state);
  for (auto _ : state) run_branch_aten(t, state.range(1));
  report_flops(state, flops_of_branch(state));
}
void branch_cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"bf16", "product", "channels", "rank"})->Unit(benchmark::kMillisecond);
  b->ArgsProduct({{0, 1}, {0, 1, 2, 3, 4, 5}, {kHidden, 4 * kHidden}, {16}});
  b->ArgsProduct({{1}, {0, 1, 2, 3, 4, 5}, {4 * kHidden}, {64}});
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

BENCHMARK(BM_attention)->Apply(attention_cases);
BENCHMARK(BM_attention_aten)->Apply(attention_cases);
BENCHMARK(BM_attention_backward)->Apply(attention_cases);
BENCHMARK(BM_attention_backward_aten)->Apply(attention_cases);
BENCH_BOTH(BM_matmul);
BENCHMARK(BM_branch)->Apply(branch_cases);
BENCHMARK(BM_branch_aten)->Apply(branch_cases);
BENCHMARK(BM_matmul_few_rows)->ArgsProduct({{0, 1}, {1, 3, 8, 24}})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_matmul_few_rows_aten)
    ->ArgsProduct({{0, 1}, {1, 3, 8, 24}})
    ->Unit(benchmark::kMillisecond);
BENCH_FP32(BM_cross_entropy);

}  // namespace
}  // namespace strata::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
