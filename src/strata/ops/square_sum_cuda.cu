// Sum of squares on NVIDIA GPUs: partial sums in double, of which the caller makes one. Never:
// checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline double square(float x) { return static_cast<double>(x) * x; }

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const T* __restrict__ x, int64_t n, double* __restrict__ partials) {
  const int64_t stride = int64_t{gridDim.x} * kThreads * N;
  double sum = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N; i < n; i += stride) {
    // In double throughout: the square of a large gradient is beyond fp32.
    if (i + N <= n) {
      const Pack<T, N> pack = load<T, N>(x + i);
      for (int k = 0; k < N; ++k) sum += square(to_float(pack.v[k]));
    } else {
      for (int64_t j = i; j < n; ++j) sum += square(to_float(x[j]));
    }
  }
  sum = block_sum(sum);
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
