// Dropout on NVIDIA GPUs: the masks of dropout_cpu.cpp, bit for bit. Never: checks.
#include <cmath>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// The finaliser of SplitMix64 (Steele et al. 2014).
__device__ inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

template <typename T, int N, bool kAdd>
__global__ void __launch_bounds__(kThreads)
    dropout_packs(const T* __restrict__ x, T* y, const int64_t* __restrict__ token_keys,
                  uint64_t key, int64_t channels, uint32_t threshold, float factor,
                  unsigned of_row) {
  const int64_t row = blockIdx.x / of_row;
  const int64_t column = (int64_t{blockIdx.x % of_row} * kThreads + threadIdx.x) * N;
  if (column >= channels) return;
  const uint64_t row_key = mix(mix(key) ^ static_cast<uint64_t>(token_keys[row]));
  const auto low = static_cast<uint32_t>(row_key), high = static_cast<uint32_t>(row_key >> 32);
  Pack<T, N> pack = load<T, N>(x + row * channels + column), sum;
  if constexpr (kAdd) sum = load<T, N>(y + row * channels + column);
  for (int k = 0; k < N; ++k) {
    uint32_t h = low + static_cast<uint32_t>(column + k) * 0x9E3779B9u;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15) ^ high) * 0x846CA68Bu;
    h ^= h >> 16;
    const float dropped = h >= threshold ? to_float(pack.v[k]) * factor : 0.0f;
    pack.v[k] = from_float<T>(kAdd ? to_float(sum.v[k]) + dropped : dropped);
  }
  store<T, N>(y + row * channels + column, pack);
}

template <typename T, int N, bool kAdd>
void launch_drop(const DropoutArguments& a, uint32_t threshold, float factor, Stream stream) {
  const int64_t of_row = divide_up(a.channels, int64_t{kThreads} * N);
  launch("dropout", dropout_packs<T, N, kAdd>, {a.tokens * of_row, kThreads}, stream,
         static_cast<const T*>(a.x), static_cast<T*>(a.y), a.token_keys, a.key, a.channels,
         threshold, factor, static_cast<unsigned>(of_row));
}

}  // namespace

void dropout(const DropoutArguments& a, Stream stream) {
  if (a.tokens == 0 || a.channels == 0) return;
  const double limit = std::ldexp(a.p, 32);
  const uint32_t threshold = limit >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(limit);
  const float factor = a.p < 1 ? static_cast<float>(1.0 / (1.0 - a.p)) : 0.0f;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const bool is_wide = a.channels % kWide<T> == 0 && is_aligned(a.x) && is_aligned(a.y);
    const auto launch_one = [&]<bool kAdd>() {
      is_wide ? launch_drop<T, kWide<T>, kAdd>(a, threshold, factor, stream)
              : launch_drop<T, 1, kAdd>(a, threshold, factor, stream);
    };
    a.add ? launch_one.template operator()<true>() : launch_one.template operator()<false>();
  });
}

}  // namespace strata::ops::cuda
