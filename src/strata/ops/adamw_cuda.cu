// AdamW on NVIDIA GPUs: one pass over four arrays, and over the rounded copy of one. Never: checks.
#include "strata/ops/adamw_cuda.cuh"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// T: of the copy; float: there is none.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads)
    adamw_packs(float* __restrict__ param, const float* __restrict__ grad,
                float* __restrict__ exp_avg, float* __restrict__ exp_avg_sq, T* __restrict__ copy,
                int64_t n, const AdamWFactors f) {
  constexpr bool kCopies = !std::is_same_v<T, float>;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  if (i + N > n) {  // the rest after the last whole pack
    for (int64_t j = i; j < n; ++j) {
      update_one(param[j], grad[j], exp_avg[j], exp_avg_sq[j], f);
      if constexpr (kCopies) copy[j] = from_float<T>(param[j]);
    }
    return;
  }
  Pack<float, N> p = load<float, N>(param + i), m = load<float, N>(exp_avg + i);
  Pack<float, N> v = load<float, N>(exp_avg_sq + i);
  const Pack<float, N> g = load<float, N>(grad + i);
  for (int k = 0; k < N; ++k) update_one(p.v[k], g.v[k], m.v[k], v.v[k], f);
  store<float, N>(param + i, p);
  store<float, N>(exp_avg + i, m);
  store<float, N>(exp_avg_sq + i, v);
  if constexpr (kCopies) {
    Pack<T, N> rounded;
    for (int k = 0; k < N; ++k) rounded.v[k] = from_float<T>(p.v[k]);
    store<T, N>(copy + i, rounded);
  }
}

}  // namespace

void adamw(const AdamWArrays& a, const AdamWFactors& factors, Stream stream) {
  if (a.n == 0) return;
  const bool is_wide = is_aligned(a.param) && is_aligned(a.grad) && is_aligned(a.exp_avg) &&
                       is_aligned(a.exp_avg_sq) && is_aligned(a.copy.data);
  const int64_t blocks = divide_up(divide_up(a.n, is_wide ? 4 : 1), kThreads);
  with_type(a.copy.data == nullptr ? Element::kFloat : a.copy.type, [&](auto zero) {
    using T = decltype(zero);
    launch("adamw", is_wide ? adamw_packs<4, T> : adamw_packs<1, T>, {blocks, kThreads}, stream,
           a.param, a.grad, a.exp_avg, a.exp_avg_sq, static_cast<T*>(a.copy.data), a.n, factors);
  });
}

}  // namespace strata::ops::cuda
