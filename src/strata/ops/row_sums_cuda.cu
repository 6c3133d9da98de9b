// Sums of rows on NVIDIA GPUs: a thread sums some neighbouring columns of one token. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// `packs`: of N columns, in a row.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_packs(const T* __restrict__ x, T* __restrict__ y, int64_t packs, RowSumsArguments a) {
  const int64_t own = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (own >= a.tokens * packs) return;
  const int64_t token = own / packs, column = (own - token * packs) * N;
  float sum[N];
  for (int k = 0; k < N; ++k) sum[k] = 0.0f;
  for (int64_t j = 0; j < a.per_token; ++j) {
    const int64_t row = a.place[j * a.tokens + token];
    const float weight = a.weights == nullptr ? 1.0f : a.weights[token * a.per_token + j];
    const Pack<T, N> part = load<T, N>(x + row * a.columns + column);
    for (int k = 0; k < N; ++k) sum[k] += weight * to_float(part.v[k]);
  }
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) out.v[k] = from_float<T>(sum[k]);
  store<T, N>(y + token * a.columns + column, out);
}

}  // namespace

void row_sums(const RowSumsArguments& a, Stream stream) {
  if (a.tokens == 0 || a.columns == 0) return;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const auto run = [&]<int N>() {
      const int64_t packs = a.columns / N;
      launch("row_sums", sum_packs<T, N>,
             {divide_up(a.tokens * packs, int64_t{kThreads}), kThreads}, stream,
             static_cast<const T*>(a.x), static_cast<T*>(a.y), packs, a);
    };
    if (a.columns % kWide<T> == 0 && is_aligned(a.x) && is_aligned(a.y)) {
      run.template operator()<kWide<T>>();
    } else {
      run.template operator()<1>();
    }
  });
}

}  // namespace strata::ops::cuda
