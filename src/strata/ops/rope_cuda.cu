// Rotary position embedding on NVIDIA GPUs, in place: a block a token. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kMostThreads = 256;

// A thread turns N channels of the first half of a head with their partners of the second half, and
// goes on with the pack that lies a block further. `of_head`: packs of half a head; 32 bits,
// because divisions of 64 would cost as much as the memory.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    rope_packs(T* __restrict__ x, int64_t token_stride, int64_t head_stride, int heads,
               const float* __restrict__ cos, const float* __restrict__ sin, int half, float sign) {
  const int of_head = half / N;
  T* token = x + blockIdx.x * token_stride;
  const float* token_cos = cos + int64_t{blockIdx.x} * half;
  const float* token_sin = sin + int64_t{blockIdx.x} * half;
  for (int pack = threadIdx.x; pack < heads * of_head; pack += blockDim.x) {
    const int channel = pack % of_head * N;
    T* first = token + pack / of_head * head_stride + channel;
    T* second = first + half;
    const float* c = token_cos + channel;
    const float* s = token_sin + channel;
    Pack<T, N> a = load<T, N>(first), b = load<T, N>(second);
    for (int k = 0; k < N; ++k) {
      const float ak = to_float(a.v[k]), bk = to_float(b.v[k]), sk = sign * s[k];
      a.v[k] = from_float<T>(ak * c[k] - bk * sk);
      b.v[k] = from_float<T>(bk * c[k] + ak * sk);
    }
    store<T, N>(first, a);
    store<T, N>(second, b);
  }
}

template <typename T, int N>
void launch_turn(HeadsView x, const float* cos, const float* sin, int64_t tokens, int64_t half,
                 float sign, Stream stream) {
  const Grid grid{tokens, threads_for(x.heads * half / N, kMostThreads)};
  launch("rope", rope_packs<T, N>, grid, stream, static_cast<T*>(x.data), x.token_stride,
         x.head_stride, static_cast<int>(x.heads), cos, sin, static_cast<int>(half), sign);
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
    is_wide ? launch_turn<T, kN>(x, cos, sin, tokens, half, sign, stream)
            : launch_turn<T, 1>(x, cos, sin, tokens, half, sign, stream);
  });
}

}  // namespace strata::ops::cuda
