// AdamW on NVIDIA GPUs: one pass over four arrays. Never: checks.
#include "strata/ops/adamw_cuda.cuh"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <int N>
__global__ void __launch_bounds__(kThreads)
    adamw_packs(float* __restrict__ param, const float* __restrict__ grad,
                float* __restrict__ exp_avg, float* __restrict__ exp_avg_sq, int64_t n,
                const AdamWFactors f) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  if (i + N > n) {  // the rest behind the last whole pack
    for (int64_t j = i; j < n; ++j) update_one(param[j], grad[j], exp_avg[j], exp_avg_sq[j], f);
    return;
  }
  Pack<float, N> p = load<float, N>(param + i), m = load<float, N>(exp_avg + i);
  Pack<float, N> v = load<float, N>(exp_avg_sq + i);
  const Pack<float, N> g = load<float, N>(grad + i);
  for (int k = 0; k < N; ++k) update_one(p.v[k], g.v[k], m.v[k], v.v[k], f);
  store<float, N>(param + i, p);
  store<float, N>(exp_avg + i, m);
  store<float, N>(exp_avg_sq + i, v);
}

}  // namespace

void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
           const AdamWFactors& factors, Stream stream) {
  if (n == 0) return;
  const bool is_wide =
      is_aligned(param) && is_aligned(grad) && is_aligned(exp_avg) && is_aligned(exp_avg_sq);
  const int64_t blocks = divide_up(divide_up(n, is_wide ? 4 : 1), kThreads);
  launch("adamw", is_wide ? adamw_packs<4> : adamw_packs<1>, {blocks, kThreads}, stream, param,
         grad, exp_avg, exp_avg_sq, n, factors);
}

}  // namespace strata::ops::cuda
