// Rotary position embedding on NVIDIA GPUs, in place. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A thread turns N channels of the first half of a head with their partners of the second half.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    turn(T* __restrict__ x, int64_t token_stride, int64_t head_stride, int64_t heads,
         const float* __restrict__ cos, const float* __restrict__ sin, int64_t half, float sign,
         int64_t packs) {
  const int64_t pack = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pack >= packs) return;
  const int64_t of_head = half / N;
  const int64_t channel = pack % of_head * N;
  const int64_t head = pack / of_head % heads, token = pack / of_head / heads;
  T* first = x + token * token_stride + head * head_stride + channel;
  T* second = first + half;
  const float* c = cos + token * half + channel;
  const float* s = sin + token * half + channel;
  Pack<T, N> a = load<T, N>(first), b = load<T, N>(second);
  for (int k = 0; k < N; ++k) {
    const float ak = to_float(a.v[k]), bk = to_float(b.v[k]), sk = sign * s[k];
    a.v[k] = from_float<T>(ak * c[k] - bk * sk);
    b.v[k] = from_float<T>(bk * c[k] + ak * sk);
  }
  store<T, N>(first, a);
  store<T, N>(second, b);
}

}  // namespace

void rope(Element type, HeadsView x, const float* cos, const float* sin, int64_t tokens,
          int64_t half, bool inverse, Stream stream) {
  if (tokens == 0 || half == 0 || x.heads == 0) return;
  const float sign = inverse ? -1.0f : 1.0f;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T>;
    const bool is_wide =
        half % kN == 0 && x.token_stride % kN == 0 && x.head_stride % kN == 0 && is_aligned(x.data);
    const int64_t packs = tokens * x.heads * half / (is_wide ? kN : 1);
    const auto blocks = static_cast<unsigned>(divide_up(packs, kThreads));
    T* data = static_cast<T*>(x.data);
    if (is_wide) {
      turn<T, kN><<<blocks, kThreads, 0, stream>>>(data, x.token_stride, x.head_stride, x.heads,
                                                   cos, sin, half, sign, packs);
    } else {
      turn<T, 1><<<blocks, kThreads, 0, stream>>>(data, x.token_stride, x.head_stride, x.heads, cos,
                                                  sin, half, sign, packs);
    }
  });
  check_launch("rope");
}

}  // namespace strata::ops::cuda
