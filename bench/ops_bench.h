// What the micro-benchmarks of ops share: the shapes of a small Llama (T = 2048 tokens, 8 query
// heads of 64 channels, H = 512, I = 1376, V = 8192), rates, and how a pair of timings is
// registered.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

namespace strata::bench {

using benchmark::Counter;
using benchmark::State;

constexpr int64_t kTokens = 2048, kQueryHeads = 8, kChannels = 64;
constexpr int64_t kHidden = 512, kIntermediate = 1376, kVocabulary = 8192;

inline at::ScalarType storage(const State& state) {
  return state.range(0) ? at::kBFloat16 : at::kFloat;
}

inline void report_flops(State& state, double flops) {
  state.counters["GFLOPS"] = Counter(flops * state.iterations() / 1e9, Counter::kIsRate);
}
inline void report_bytes(State& state, double bytes) {
  state.counters["GB/s"] = Counter(bytes * state.iterations() / 1e9, Counter::kIsRate);
}

}  // namespace strata::bench

// Argument: 0 fp32, 1 bf16.
#define BENCH_BOTH(name)                                                           \
  BENCHMARK(name)->ArgName("bf16")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond); \
  BENCHMARK(name##_aten)->ArgName("bf16")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)
#define BENCH_FP32(name)                          \
  BENCHMARK(name)->Unit(benchmark::kMillisecond); \
  BENCHMARK(name##_aten)->Unit(benchmark::kMillisecond)
