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
    turn_halves(T* __restrict__ x, int64_t token_stride, int64_t head_stride, int heads,
                const float* __restrict__ cos, const float* __restrict__ sin, int half,
                float sign) {
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

// A thread turns N channels with their neighbours among them, and goes on as above. Two channels
// are read one by one: they may lie anywhere.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    turn_neighbours(T* __restrict__ x, int64_t token_stride, int64_t head_stride, int heads,
                    const float* __restrict__ cos, const float* __restrict__ sin, int half,
                    float sign) {
  const int of_head = 2 * half / N;
  T* token = x + blockIdx.x * token_stride;
  const float* token_cos = cos + int64_t{blockIdx.x} * half;
  const float* token_sin = sin + int64_t{blockIdx.x} * half;
  for (int pack = threadIdx.x; pack < heads * of_head; pack += blockDim.x) {
    const int channel = pack % of_head * N;
    T* first = token + pack / of_head * head_stride + channel;
    const float* c = token_cos + channel / 2;
    const float* s = token_sin + channel / 2;
    Pack<T, N> values;
    if constexpr (N == 2) {
      values = {{first[0], first[1]}};
    } else {
      values = load<T, N>(first);
    }
    for (int k = 0; k < N; k += 2) {
      const float a = to_float(values.v[k]), b = to_float(values.v[k + 1]), sk = sign * s[k / 2];
      values.v[k] = from_float<T>(a * c[k / 2] - b * sk);
      values.v[k + 1] = from_float<T>(b * c[k / 2] + a * sk);
    }
    if constexpr (N == 2) {
      first[0] = values.v[0];
      first[1] = values.v[1];
    } else {
      store<T, N>(first, values);
    }
  }
}

// `packs`: of a head.
template <typename T, typename Kernel>
void launch_turn(Kernel kernel, const RopeArguments& a, int64_t packs, Stream stream) {
  const Grid grid{a.tokens, threads_for(a.x.heads * packs, kMostThreads)};
  launch("rope", kernel, grid, stream, static_cast<T*>(a.x.data), a.x.token_stride, a.x.head_stride,
         static_cast<int>(a.x.heads), a.cos, a.sin, static_cast<int>(a.half),
         a.inverse ? -1.0f : 1.0f);
}

}  // namespace

void rope(const RopeArguments& a, Stream stream) {
  if (a.tokens == 0 || a.half == 0 || a.x.heads == 0) return;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T>;
    const bool is_aligned_to_packs =
        a.x.token_stride % kN == 0 && a.x.head_stride % kN == 0 && is_aligned(a.x.data);
    if (a.pairs == RopePairs::kHalves) {
      is_aligned_to_packs&& a.half % kN == 0
          ? launch_turn<T>(turn_halves<T, kN>, a, a.half / kN, stream)
          : launch_turn<T>(turn_halves<T, 1>, a, a.half, stream);
    } else {
      is_aligned_to_packs && 2 * a.half % kN == 0
          ? launch_turn<T>(turn_neighbours<T, kN>, a, 2 * a.half / kN, stream)
          : launch_turn<T>(turn_neighbours<T, 2>, a, a.half, stream);
    }
  });
}

}  // namespace strata::ops::cuda
