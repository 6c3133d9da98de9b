// Dropout on NVIDIA GPUs: the masks of dropout_cpu.cpp, bit for bit. Never: checks.
#include <cmath>

#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/dropout_hash.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N, bool kAdd>
__global__ void __launch_bounds__(kThreads)
    dropout_packs(const T* __restrict__ x, T* y, const int64_t* __restrict__ token_keys,
                  uint64_t key, int64_t channels, uint32_t threshold, float factor,
                  unsigned of_row) {
  const int64_t row = blockIdx.x / of_row;
  const int64_t column = (int64_t{blockIdx.x % of_row} * kThreads + threadIdx.x) * N;
  if (column >= channels) return;
  const uint64_t bits = row_bits(key, token_keys[row]);
  Pack<T, N> pack = load<T, N>(x + row * channels + column), sum;
  if constexpr (kAdd) sum = load<T, N>(y + row * channels + column);
  for (int k = 0; k < N; ++k) {
    const bool is_kept = channel_bits(bits, column + k) >= threshold;
    const float dropped = is_kept ? to_float(pack.v[k]) * factor : 0.0f;
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
