// Sum of squares on NVIDIA GPUs: partial sums in double, of which the caller makes one. Never:
// checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// In double throughout: the square of a large gradient is beyond fp32.
__device__ inline double square(float x) { return static_cast<double>(x) * x; }

template <typename T, int N>
__device__ inline double add_squares(double sum, const Pack<T, N>& pack) {
#pragma unroll
  for (int k = 0; k < N; ++k) sum += square(to_float(pack.v[k]));
  return sum;
}

// Packs that a thread asks for before it needs the first: a block alone would wait for memory.
constexpr int kAhead = 4;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const T* __restrict__ x, int64_t n, double* __restrict__ partials) {
  const int64_t stride = int64_t{gridDim.x} * kThreads * N;
  double sums[kAhead] = {};  // each adds up by itself
  int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  for (; i + (kAhead - 1) * stride + N <= n; i += kAhead * stride) {
    Pack<T, N> packs[kAhead];
#pragma unroll
    for (int p = 0; p < kAhead; ++p) packs[p] = load<T, N>(x + i + p * stride);
#pragma unroll
    for (int p = 0; p < kAhead; ++p) sums[p] = add_squares(sums[p], packs[p]);
  }
  for (; i + N <= n; i += stride) sums[0] = add_squares(sums[0], load<T, N>(x + i));
  for (; i < n; ++i) sums[0] += square(to_float(x[i]));  // of one thread, what fills no pack
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

}  // namespace

void square_sum(Element type, const void* flat, int64_t n, double* partials, Stream stream) {
  if (n == 0) return;
  const Grid grid{square_sum_partials(n), kThreads};
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch("square_sum", is_aligned(flat) ? sum_squares<T, kWide<T>> : sum_squares<T, 1>, grid,
           stream, static_cast<const T*>(flat), n, partials);
  });
}

}  // namespace strata::ops::cuda
