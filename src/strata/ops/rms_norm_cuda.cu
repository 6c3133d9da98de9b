// RMSNorm on NVIDIA GPUs, fp32 arithmetic: a block a row, or a warp where rows are short
// (rms_norm_short_cuda.cu). Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/rms_norm_short.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kMostThreads = 512;
// Sums of the weight's gradient rest in shared memory up to this many channels, in global memory
// beyond.
constexpr int64_t kSharedChannels = 8192;

// Threads are a multiple of 32; thread i has the packs i, i + threads, ...
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    forward(const T* __restrict__ x, Element weight_type, const void* __restrict__ weight,
            float* __restrict__ rstd, T* __restrict__ y, int64_t channels, double eps) {
  const int64_t row = blockIdx.x;
  const T* from = x + row * channels;
  T* to = y + row * channels;
  float sum = 0;
  for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
    const Pack<T, N> pack = load<T, N>(from + c);
    for (int k = 0; k < N; ++k) {
      const float value = to_float(pack.v[k]);
      sum += value * value;
    }
  }
  const float factor = inverse_root(block_sum(sum), channels, eps);
  if (threadIdx.x == 0) rstd[row] = factor;
  for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
    Pack<T, N> pack = load<T, N>(from + c);
    float w[N];
    read_pack<T, N>(weight_type, weight, c, w);
    for (int k = 0; k < N; ++k) {
      // Rounded to the type before the weight, as the reference does.
      const float normed = to_float(from_float<T>(to_float(pack.v[k]) * factor));
      pack.v[k] = from_float<T>(normed * w[k]);
    }
    store<T, N>(to + c, pack);
  }
}

// Block b does the rows b, b + blocks, ... and sums their part of the weight's gradient. A thread
// has the same channels in every row, so these sums need no barrier.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    backward(const T* __restrict__ x, Element weight_type, const void* __restrict__ weight,
             const float* __restrict__ rstd, const T* __restrict__ dy,
             const T* __restrict__ residual, T* __restrict__ dx, float* __restrict__ partials,
             int64_t tokens, int64_t channels) {
  float* sums = nullptr;
  if (partials != nullptr) {
    sums = channels <= kSharedChannels ? dynamic_shared_memory() : partials + blockIdx.x * channels;
    for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
      for (int k = 0; k < N; ++k) sums[c + k] = 0;
    }
  }
  for (int64_t row = blockIdx.x; row < tokens; row += gridDim.x) {
    const int64_t start = row * channels;
    const float factor = rstd[row];
    float dot = 0;
    for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
      const Pack<T, N> px = load<T, N>(x + start + c), pdy = load<T, N>(dy + start + c);
      float w[N];
      read_pack<T, N>(weight_type, weight, c, w);
      for (int k = 0; k < N; ++k) dot += to_float(pdy.v[k]) * w[k] * to_float(px.v[k]);
    }
    dot = block_sum(dot) / static_cast<float>(channels) * factor * factor;
    for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
      const Pack<T, N> px = load<T, N>(x + start + c), pdy = load<T, N>(dy + start + c);
      float w[N];
      read_pack<T, N>(weight_type, weight, c, w);
      Pack<T, N> out;
      if (residual != nullptr) out = load<T, N>(residual + start + c);
      for (int k = 0; k < N; ++k) {
        const float xk = to_float(px.v[k]), dyk = to_float(pdy.v[k]);
        float value = factor * (dyk * w[k] - xk * dot);
        if (residual != nullptr) value += to_float(out.v[k]);
        out.v[k] = from_float<T>(value);
        if (sums != nullptr) sums[c + k] += dyk * xk * factor;
      }
      store<T, N>(dx + start + c, out);
    }
  }
  if (partials == nullptr || sums == partials + blockIdx.x * channels) return;
  for (int64_t c = int64_t{N} * threadIdx.x; c < channels; c += int64_t{N} * blockDim.x) {
    for (int k = 0; k < N; ++k) partials[blockIdx.x * channels + c + k] = sums[c + k];
  }
}

__global__ void add_partials(const float* __restrict__ partials, int64_t blocks, int64_t channels,
                             Element type, void* dweight, bool add) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  float sum = add ? read_element(type, dweight, c) : 0.0f;
  for (int64_t b = 0; b < blocks; ++b) sum += partials[b * channels + c];
  write_element(type, dweight, c, sum);
}

template <typename T, int N>
void launch_forward(const RmsNormArguments& a, void* y, double eps, Stream stream) {
  const Grid grid{a.tokens, threads_for(divide_up(a.channels, N), kMostThreads)};
  launch("rms_norm", forward<T, N>, grid, stream, static_cast<const T*>(a.x), a.weight_type,
         a.weight, a.rstd, static_cast<T*>(y), a.channels, eps);
}

template <typename T, int N>
void launch_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                     Stream stream) {
  const bool shares = partials != nullptr && a.channels <= kSharedChannels;
  const Grid grid{.blocks = partials != nullptr ? rms_norm_partials(a.tokens) : a.tokens,
                  .threads = threads_for(divide_up(a.channels, N), kMostThreads),
                  .shared_bytes = shares ? static_cast<size_t>(a.channels) * sizeof(float) : 0};
  launch("rms_norm_backward", backward<T, N>, grid, stream, static_cast<const T*>(a.x),
         a.weight_type, a.weight, a.rstd, static_cast<const T*>(g.dy),
         static_cast<const T*>(g.residual), static_cast<T*>(g.dx), partials, a.tokens, a.channels);
}

void launch_rows_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                          Stream stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const bool is_wide = a.channels % kWide<T> == 0 && is_aligned(a.x) && is_aligned(a.weight) &&
                         is_aligned(g.dy) && is_aligned(g.dx) && is_aligned(g.residual);
    is_wide ? launch_backward<T, kWide<T>>(a, g, partials, stream)
            : launch_backward<T, 1>(a, g, partials, stream);
  });
}

}  // namespace

void rms_norm(const RmsNormArguments& a, void* y, double eps, Stream stream) {
  if (a.tokens == 0 || a.channels == 0) return;
  if (are_short_rows(a, {y})) return rms_norm_short(a, y, eps, stream);
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const bool is_wide =
        a.channels % kWide<T> == 0 && is_aligned(a.x) && is_aligned(a.weight) && is_aligned(y);
    is_wide ? launch_forward<T, kWide<T>>(a, y, eps, stream)
            : launch_forward<T, 1>(a, y, eps, stream);
  });
}

void rms_norm_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                       Stream stream) {
  if (a.channels == 0) return;
  if (a.tokens > 0 && are_short_rows(a, {g.dy, g.dx, g.residual})) {
    rms_norm_short_backward(a, g, partials, stream);
  } else if (a.tokens > 0) {
    launch_rows_backward(a, g, partials, stream);
  }
  if (g.dweight == nullptr) return;
  constexpr int kThreads = 128;
  launch("rms_norm_backward", add_partials, {divide_up(a.channels, kThreads), kThreads}, stream,
         partials, rms_norm_partials(a.tokens), a.channels, g.dweight_type, g.dweight, g.beta != 0);
}

}  // namespace strata::ops::cuda
