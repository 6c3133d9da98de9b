// Uniform noise on NVIDIA GPUs: the draws of uniform_noise_cpu.cpp. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/dropout_hash.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    noise_packs(T* x, const int64_t* __restrict__ token_keys, uint64_t key, int64_t channels,
                float magnitude, unsigned of_row) {
  const int64_t row = blockIdx.x / of_row;
  const int64_t column = (int64_t{blockIdx.x % of_row} * kThreads + threadIdx.x) * N;
  if (column >= channels) return;
  const uint64_t bits = row_bits(key, token_keys[row]);
  Pack<T, N> pack = load<T, N>(x + row * channels + column);
  for (int k = 0; k < N; ++k) {
    const auto step = static_cast<int32_t>(channel_bits(bits, column + k) >> 8) - (1 << 23);
    const float noise = magnitude * (static_cast<float>(step) * (1.0f / (1 << 23)));
    pack.v[k] = from_float<T>(to_float(pack.v[k]) + noise);
  }
  store<T, N>(x + row * channels + column, pack);
}

template <typename T, int N>
void launch_noise(const NoiseArguments& a, Stream stream) {
  const int64_t of_row = divide_up(a.channels, int64_t{kThreads} * N);
  launch("uniform_noise", noise_packs<T, N>, {a.tokens * of_row, kThreads}, stream,
         static_cast<T*>(a.x), a.token_keys, a.key, a.channels, a.magnitude,
         static_cast<unsigned>(of_row));
}

}  // namespace

void uniform_noise(const NoiseArguments& a, Stream stream) {
  if (a.tokens == 0 || a.channels == 0) return;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const bool is_wide = a.channels % kWide<T> == 0 && is_aligned(a.x);
    is_wide ? launch_noise<T, kWide<T>>(a, stream) : launch_noise<T, 1>(a, stream);
  });
}

}  // namespace strata::ops::cuda
