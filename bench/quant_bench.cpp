// Times the quantised formats on a matrix of 4096 x 4096, one thread: quantising against a copy of
// the same bytes, decoding, and products with codes against products with the decoded matrix. GB/s
// counts the bytes of the plain matrix.
//
// What is compared: quantise() of a whole matrix, memory for the result and second-level scales
// included, with memcpy() of the plain matrix into memory that is there already. "of_copy" is the
// time of the copy by that of quantising, both of the thread's processor time, taken in turns.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <vector>

#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/few_rows.h"
#include "strata/ops/quant/int8_product.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/mxfp4.h"
#include "strata/ops/quant/quantized.h"

namespace {

using benchmark::Counter;
using benchmark::State;
namespace ops = strata::ops;
namespace quant = strata::ops::quant;

constexpr int64_t kSize = 4096, kTokens = 2048, kHidden = 512;

constexpr quant::Format kFormats[] = {{quant::Kind::kNf4, 64, false},
                                      {quant::Kind::kNf4, 64, true},
                                      {quant::Kind::kFp4, 64, false},
                                      {quant::Kind::kInt8, 64, false}};

const quant::Format& format(State& state) {
  const quant::Format& chosen = kFormats[state.range(0)];
  state.SetLabel(quant::describe(chosen));
  return chosen;
}

void report_bytes(State& state, const at::Tensor& plain) {
  const double bytes = static_cast<double>(plain.nbytes());
  state.counters["GB/s"] = Counter(bytes * state.iterations() / 1e9, Counter::kIsRate);
}

at::Tensor matrix(State& state) {
  return at::randn({kSize, kSize}).to(state.range(1) ? at::kBFloat16 : at::kFloat);
}

void BM_copy(State& state) {
  const at::Tensor from = matrix(state), to = at::empty_like(from);
  for (auto _ : state) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    benchmark::ClobberMemory();
  }
  report_bytes(state, from);
}

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Times `quantize` and, between its turns, a copy of `plain`; reports both and "of_copy".
template <typename Quantize>
void time_beside_copy(State& state, const at::Tensor& plain, const Quantize& quantize) {
  const at::Tensor copy = at::empty_like(plain);
  double copying = 0, quantizing = 0;
  for (auto _ : state) {
    const double start = processor_seconds();
    quantize();
    quantizing += processor_seconds() - start;
    state.PauseTiming();
    const double start_of_copy = processor_seconds();
    std::memcpy(copy.mutable_data_ptr(), plain.const_data_ptr(), plain.nbytes());
    benchmark::ClobberMemory();
    copying += processor_seconds() - start_of_copy;
    state.ResumeTiming();
  }
  report_bytes(state, plain);
  state.counters["of_copy"] = copying / quantizing;
}

void BM_quantize(State& state) {
  const at::Tensor plain = matrix(state);
  const quant::Format& chosen = format(state);
  time_beside_copy(state, plain, [&] { benchmark::DoNotOptimize(quant::quantize(plain, chosen)); });
}

// The kernels of 4 bits alone, into memory that is there already, by instruction set.
void BM_kernel(State& state) {
  const at::Tensor plain = matrix(state);
  const quant::Format& chosen = format(state);
  const auto set = static_cast<ops::InstructionSet>(state.range(2));
  state.SetLabel(quant::describe(chosen) + (set == ops::InstructionSet::kAvx2     ? ", AVX2"
                                            : set == ops::InstructionSet::kAvx512 ? ", AVX-512"
                                                                                  : ", plain"));
  if (static_cast<int>(set) > static_cast<int>(ops::best_instruction_set())) {
    state.SkipWithError("this processor has no such instructions");
    return;
  }
  std::vector<uint8_t> codes(static_cast<size_t>(kSize * kSize / 2));
  std::vector<float> scales(static_cast<size_t>(kSize * kSize / chosen.block));
  const quant::cpu::Values values{state.range(1) ? ops::Element::kBFloat16 : ops::Element::kFloat,
                                  plain.const_data_ptr()};
  time_beside_copy(state, plain, [&] {
    quant::cpu::quantize_4bit(chosen.kind, chosen.block, values, plain.numel(), codes.data(),
                              scales.data(), set);
  });
}

void BM_dequantize(State& state) {
  const at::Tensor plain = matrix(state);
  const quant::QuantizedMatrix codes = quant::quantize(plain, format(state));
  for (auto _ : state) benchmark::DoNotOptimize(quant::dequantize(codes, plain.scalar_type()));
  report_bytes(state, plain);
}

void BM_product_of_codes(State& state) {
  const quant::QuantizedMatrix codes =
      quant::quantize(at::randn({kHidden, kHidden}), format(state));
  const at::Tensor x = at::randn({kTokens, kHidden}), y = at::empty_like(x);
  for (auto _ : state) quant::matmul_into(y, x, codes, /*transposed=*/true, 0, at::kFloat);
}

// A decoder's token, or the few rows of an expert: the codes of 4096 x 4096 beside the plain matrix
// in the same type.
void BM_few_rows_of_codes(State& state) {
  const at::Tensor plain = matrix(state);
  const quant::QuantizedMatrix codes = quant::quantize(plain, format(state));
  const at::Tensor x = at::randn({state.range(2), kSize}).to(plain.scalar_type());
  const at::Tensor y = at::empty_like(x);
  const bool back = state.range(3) != 0;
  for (auto _ : state) quant::matmul_into(y, x, codes, !back, 0, x.scalar_type());
  report_bytes(state, plain);
}

// What files hold, as answers multiply it: first argument 0 fp8 in tiles of 128 x 128, 1 whole
// numbers of 4 bits in groups of 128 with zeros, 2 the same with an order of columns, 3 MXFP4.
quant::QuantizedMatrix of_files(int64_t kind) {
  const quant::IntParts parts{4, ops::Element::kHalf, /*has_zeros=*/true, /*has_order=*/kind == 2};
  const quant::Format formats[] = {quant::fp8_format(128, 128), quant::int_format(128, parts),
                                   quant::int_format(128, parts), quant::kMxfp4Format};
  quant::QuantizedMatrix codes{formats[kind], kSize, kSize, {}, at::kBFloat16};
  codes.bytes = at::randint(120, {codes.layout().total}, at::kByte);
  if (kind == 0) codes.scales().fill_(0.01);
  if (kind == 1 || kind == 2) codes.scales().fill_(0.01);
  if (kind == 2) codes.order().copy_(at::randint(kSize / 128, {kSize}));
  return codes;
}

void BM_answer_of_codes(State& state) {
  const quant::QuantizedMatrix codes = of_files(state.range(0));
  const at::ScalarType type = state.range(1) == 0 ? at::kFloat : at::kBFloat16;
  const at::Tensor x = at::randn({state.range(2), kSize}).to(type), y = at::empty_like(x);
  for (auto _ : state) quant::multiply_few_rows_into(y, x, codes, 0, type);
}

// The same by way of a decoded matrix.
void BM_answer_decoded(State& state) {
  const quant::QuantizedMatrix codes = of_files(state.range(0));
  const at::ScalarType type = state.range(1) == 0 ? at::kFloat : at::kBFloat16;
  const at::Tensor x = at::randn({state.range(2), kSize}).to(type), y = at::empty_like(x);
  const at::Tensor decoded = at::empty({kSize, kSize}, type);
  for (auto _ : state) {
    if (state.range(0) == 3) {
      quant::decode_mxfp4_into(decoded, codes, /*through_half=*/false);
      ops::matmul_into(y, x, decoded, {}, 0);
    } else {
      quant::matmul_into(y, x, codes, /*transposed=*/true, 0, type);
    }
  }
}

// LLM.int8() of an answer.
void BM_int8_answer(State& state) {
  const quant::QuantizedMatrix codes =
      quant::quantize(at::randn({kSize, kSize}), {quant::Kind::kInt8, 64, false});
  const at::Tensor x = at::randn({state.range(0), kSize});
  for (auto _ : state) benchmark::DoNotOptimize(quant::int8_product(x, codes, 6.0));
}

void BM_few_rows(State& state) {
  const at::Tensor plain = matrix(state);
  const at::Tensor x = at::randn({state.range(2), kSize}).to(plain.scalar_type());
  const at::Tensor y = at::empty_like(x);
  const bool back = state.range(3) != 0;
  for (auto _ : state) ops::matmul_into(y, x, plain, {.b = !back}, 0);
  report_bytes(state, plain);
}

void BM_product(State& state) {
  const at::Tensor w = at::randn({kHidden, kHidden});
  const at::Tensor x = at::randn({kTokens, kHidden}), y = at::empty_like(x);
  for (auto _ : state) ops::matmul_into(y, x, w, {.b = true}, 0);
}

// Arguments: row of kFormats; 0 fp32, 1 bf16.
BENCHMARK(BM_copy)->Args({0, 0})->Args({0, 1})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_quantize)->ArgsProduct({{0, 1, 2, 3}, {0, 1}})->Unit(benchmark::kMillisecond);
// The last argument: 0 plain loops, 1 AVX2, 2 AVX-512.
BENCHMARK(BM_kernel)->ArgsProduct({{0, 2}, {0, 1}, {1, 2}})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_dequantize)->ArgsProduct({{0, 1, 2, 3}, {0, 1}})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_product)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_product_of_codes)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);
// Further arguments: rows; whether back, by the matrix as it is.
BENCHMARK(BM_few_rows_of_codes)
    ->ArgsProduct({{0, 1, 3}, {0, 1}, {1, 4, 12}, {0, 1}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_answer_of_codes)
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1}, {1, 12}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_answer_decoded)
    ->ArgsProduct({{0, 1, 2, 3}, {0, 1}, {1, 12}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_int8_answer)->Arg(1)->Arg(12)->Arg(40)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_few_rows)
    ->ArgsProduct({{0}, {0, 1}, {1, 4, 12}, {0, 1}})
    ->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
