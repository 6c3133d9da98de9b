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
template <typename T, int N, RmsNormKind kKind>
__global__ void __launch_bounds__(kMostThreads)
    norm_rows(const T* __restrict__ x, Element weight_type, const void* __restrict__ weight,
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
      const float normed = to_float(pack.v[k]) * factor;
      pack.v[k] = from_float<T>(weighted<T, kKind>(normed, factor_of<kKind>(w[k])));
    }
    store<T, N>(to + c, pack);
  }
}

// The weight's gradient of a block's rows. In shared memory element k of all packs lies together,
// so that the threads of a warp reach as many banks as they are; in global memory as the result.
template <int N>
struct WeightSums {
  bool is_wanted, is_shared;
  float* own;  // the block's row of partials
  int packs;

  // Not through one pointer to either memory, which would be reached as neither of them.
  template <typename Use>
  __device__ void with(int pack, int k, const Use& use) const {
    if (is_shared) {
      use(dynamic_shared_memory()[k * packs + pack]);
    } else if (is_wanted) {
      use(own[pack * N + k]);
    }
  }
  __device__ void finish(int pack) const {
    for (int k = 0; k < N && is_shared; ++k) {
      own[pack * N + k] = dynamic_shared_memory()[k * packs + pack];
    }
  }
};

// Block b does the rows b, b + blocks, ... and sums their part of the weight's gradient. A thread
// has the same channels in every row, so these sums need no barrier. Three blocks of a
// multiprocessor, where rows are all there is to do: one waits for its barrier while two read.
template <typename T, int N, RmsNormKind kKind>
__global__ void __launch_bounds__(kMostThreads, 3)
    norm_rows_backward(const T* __restrict__ x, Element weight_type,
                       const void* __restrict__ weight, const float* __restrict__ rstd,
                       const T* __restrict__ dy, const T* __restrict__ residual, T* __restrict__ dx,
                       float* __restrict__ partials, int64_t tokens, int64_t channels) {
  const int packs = static_cast<int>(channels / N);
  const bool is_wanted = partials != nullptr;
  const WeightSums<N> sums{is_wanted, is_wanted && channels <= kSharedChannels,
                           partials + (is_wanted ? blockIdx.x * channels : 0), packs};
  for (int p = threadIdx.x; p < packs; p += blockDim.x) {
    for (int k = 0; k < N; ++k) sums.with(p, k, [](float& sum) { sum = 0; });
  }
  for (int64_t row = blockIdx.x; row < tokens; row += gridDim.x) {
    const int64_t start = row * channels;
    const float factor = rstd[row];
    float dot = 0;
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      const Pack<T, N> px = load<T, N>(x + start + p * N), pdy = load<T, N>(dy + start + p * N);
      float w[N];
      read_pack<T, N>(weight_type, weight, p * N, w);
      for (int k = 0; k < N; ++k) {
        dot += to_float(pdy.v[k]) * factor_of<kKind>(w[k]) * to_float(px.v[k]);
      }
    }
    dot = block_sum(dot) / static_cast<float>(channels) * factor * factor;
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      const Pack<T, N> px = load<T, N>(x + start + p * N), pdy = load<T, N>(dy + start + p * N);
      float w[N];
      read_pack<T, N>(weight_type, weight, p * N, w);
      Pack<T, N> out;
      if (residual != nullptr) out = load<T, N>(residual + start + p * N);
      for (int k = 0; k < N; ++k) {
        const float xk = to_float(px.v[k]), dyk = to_float(pdy.v[k]);
        float value = factor * (dyk * factor_of<kKind>(w[k]) - xk * dot);
        if (residual != nullptr) value += to_float(out.v[k]);
        out.v[k] = from_float<T>(value);
        sums.with(p, k, [&](float& sum) { sum += dyk * xk * factor; });
      }
      store<T, N>(dx + start + p * N, out);
    }
  }
  for (int p = threadIdx.x; p < packs; p += blockDim.x) sums.finish(p);
}

// A warp of channels a block, kSumGroups warps that each sum every kSumGroups-th part: one thread
// after the other would wait for hundreds of loads.
constexpr int kSumGroups = 16;
__global__ void __launch_bounds__(32 * kSumGroups)
    add_partials(const float* __restrict__ partials, int64_t blocks, int64_t channels, Element type,
                 void* dweight, bool add) {
  __shared__ float sums[kSumGroups][32];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  for (int64_t b = group; b < blocks && c < channels; b += kSumGroups) {
    sum += partials[b * channels + c];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= channels) return;
  float all = add ? read_element(type, dweight, c) : 0.0f;
  for (int g = 0; g < kSumGroups; ++g) all += sums[g][lane];
  write_element(type, dweight, c, all);
}

template <typename T, int N>
void launch_forward(const RmsNormArguments& a, void* y, double eps, Stream stream) {
  const Grid grid{a.tokens, threads_for(divide_up(a.channels, N), kMostThreads)};
  with_kind(a.kind, [&]<RmsNormKind kKind>() {
    launch("rms_norm", norm_rows<T, N, kKind>, grid, stream, static_cast<const T*>(a.x),
           a.weight_type, a.weight, a.rstd, static_cast<T*>(y), a.channels, eps);
  });
}

template <typename T, int N>
void launch_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                     Stream stream) {
  const bool shares = partials != nullptr && a.channels <= kSharedChannels;
  const Grid grid{
      .blocks = partials != nullptr ? rms_norm_partials(a.tokens, a.channels) : a.tokens,
      .threads = threads_for(divide_up(a.channels, N), kMostThreads),
      .shared_bytes = shares ? static_cast<size_t>(a.channels) * sizeof(float) : 0};
  with_kind(a.kind, [&]<RmsNormKind kKind>() {
    launch("rms_norm_backward", norm_rows_backward<T, N, kKind>, grid, stream,
           static_cast<const T*>(a.x), a.weight_type, a.weight, a.rstd, static_cast<const T*>(g.dy),
           static_cast<const T*>(g.residual), static_cast<T*>(g.dx), partials, a.tokens,
           a.channels);
  });
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
  sum_partials("rms_norm_backward", {partials, rms_norm_partials(a.tokens, a.channels), a.channels},
               {g.dweight_type, g.dweight, g.beta != 0}, stream);
}

void sum_partials(const char* name, const Partials& p, const WeightGradient& g, Stream stream) {
  launch(name, add_partials, {divide_up(p.channels, 32), 32 * kSumGroups}, stream, p.sums, p.count,
         p.channels, g.type, g.data, g.add);
}

}  // namespace strata::ops::cuda
