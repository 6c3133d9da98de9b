// xIELU on NVIDIA GPUs: forward a thread does a pack, backward a block a row, whose part of the
// gradients of alpha_p and alpha_n it sums. Never: checks.
#include "strata/ops/device_code.cuh"
#include "strata/ops/xielu_kernels.h"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// At one x; a NaN stays one.
struct Xielu {
  float alpha_p, alpha_n, beta, eps;
  __device__ inline explicit Xielu(const float* numbers)
      : alpha_p(numbers[0]), alpha_n(numbers[1]), beta(numbers[2]), eps(numbers[3]) {}

  // expm1(min(x, eps)).
  __device__ inline float power(float x) const { return expm1f(x < eps ? x : eps); }
  __device__ inline float value(float x) const {
    return (x > 0.0f ? alpha_p * x * x : alpha_n * (power(x) - x)) + beta * x;
  }
  __device__ inline float slope(float x) const {
    if (x > 0.0f) return 2.0f * alpha_p * x + beta;
    return alpha_n * (x < eps ? power(x) : -1.0f) + beta;
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    xielu_packs(const T* __restrict__ x, T* __restrict__ y, const float* __restrict__ numbers,
                int64_t elements) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (first >= elements) return;
  const Xielu at(numbers);
  Pack<T, N> pack = load<T, N>(x + first);
  for (int k = 0; k < N; ++k) pack.v[k] = from_float<T>(at.value(to_float(pack.v[k])));
  store<T, N>(y + first, pack);
}

// Threads are a multiple of 32. Each pack is read before it is written.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    xielu_rows_backward(T* x, const T* __restrict__ dy, const float* __restrict__ numbers,
                        float* __restrict__ sums, int64_t columns) {
  const int64_t row = blockIdx.x;
  T* const both = x + row * columns;
  const T* const from = dy + row * columns;
  const Xielu at(numbers);
  float of_p = 0, of_n = 0;
  for (int64_t c = int64_t{N} * threadIdx.x; c < columns; c += int64_t{N} * blockDim.x) {
    Pack<T, N> pack = load<T, N>(both + c);
    const Pack<T, N> of_dy = load<T, N>(from + c);
    for (int k = 0; k < N; ++k) {
      const float v = to_float(pack.v[k]), d = to_float(of_dy.v[k]);
      if (v > 0.0f) {
        of_p += d * v * v;
      } else {
        of_n += d * (at.power(v) - v);
      }
      pack.v[k] = from_float<T>(d * at.slope(v));
    }
    store<T, N>(both + c, pack);
  }
  of_p = block_sum(of_p);
  of_n = block_sum(of_n);
  if (threadIdx.x != 0) return;
  sums[2 * row] = of_p;
  sums[2 * row + 1] = of_n;
}

// Calls use<T, N>() with packs as wide as rows and addresses allow.
template <typename Use>
void with_packs(const XieluArguments& a, bool is_wide, const Use& use) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    if (is_wide && a.columns % kWide<T> == 0) {
      use.template operator()<T, kWide<T>>();
    } else {
      use.template operator()<T, 1>();
    }
  });
}

}  // namespace

void xielu(const XieluArguments& a, const void* x, void* y, Stream stream) {
  with_packs(a, is_aligned(x) && is_aligned(y), [&]<typename T, int N>() {
    const int64_t elements = a.rows * a.columns;
    launch("xielu", xielu_packs<T, N>, {divide_up(elements, int64_t{kThreads} * N), kThreads},
           stream, static_cast<const T*>(x), static_cast<T*>(y), a.numbers, elements);
  });
}

void xielu_backward(const XieluArguments& a, void* x, const void* dy, float* sums, Stream stream) {
  with_packs(a, is_aligned(x) && is_aligned(dy), [&]<typename T, int N>() {
    launch("xielu_backward", xielu_rows_backward<T, N>,
           {a.rows, threads_for(divide_up(a.columns, int64_t{N}), kThreads)}, stream,
           static_cast<T*>(x), static_cast<const T*>(dy), a.numbers, sums, a.columns);
  });
}

}  // namespace strata::ops::cuda
