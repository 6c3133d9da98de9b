// RMSNorm of short rows on NVIDIA GPUs. A lane holds its part of the row in registers, so x and dy
// are read once, and its part of the weight for all rows of its warp. Never: checks.
#include "strata/ops/rms_norm_short.cuh"
#include "strata/ops/row_parts.cuh"

namespace strata::ops::cuda {
namespace {

using namespace row_parts;

template <typename T, int P>
__device__ inline Part<P> read_part(const T* row, int64_t channels) {
  Part<P> part;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const bool is_inside = channel_of(p) < channels;
    Pack<T, kN> pack;
    if (is_inside) pack = load<T, kN>(row + channel_of(p));
#pragma unroll
    for (int k = 0; k < kN; ++k) part.v[p][k] = is_inside ? to_float(pack.v[k]) : 0.0f;
  }
  return part;
}

template <typename T, int P>
__device__ inline void write_part(const Part<P>& part, T* row, int64_t channels) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (channel_of(p) >= channels) continue;
    Pack<T, kN> pack;
#pragma unroll
    for (int k = 0; k < kN; ++k) pack.v[k] = from_float<T>(part.v[p][k]);
    store<T, kN>(row + channel_of(p), pack);
  }
}

template <typename T, int P, RmsNormKind kKind>
__device__ inline Part<P> weight_part(Element type, const void* weight, int64_t channels) {
  Part<P> part = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (channel_of(p) >= channels) continue;
    read_pack<T, kN>(type, weight, channel_of(p), part.v[p]);
#pragma unroll
    for (int k = 0; k < kN; ++k) part.v[p][k] = factor_of<kKind>(part.v[p][k]);
  }
  return part;
}

template <typename T, int P, RmsNormKind kKind>
__global__ void __launch_bounds__(kThreads)
    norm_short_rows(const T* __restrict__ x, Element weight_type, const void* __restrict__ weight,
                    float* __restrict__ rstd, T* __restrict__ y, int64_t tokens, int64_t channels,
                    double eps) {
  const Part<P> w = weight_part<T, P, kKind>(weight_type, weight, channels);
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < tokens; row += stride) {
    Part<P> part = read_part<T, P>(x + row * channels, channels);
    const float sum = sum_over_row<P>([&](int p, int k) { return part.v[p][k] * part.v[p][k]; });
    const float factor = inverse_root(sum, channels, eps);
    if (threadIdx.x % 32 == 0) rstd[row] = factor;
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        part.v[p][k] = weighted<T, kKind>(part.v[p][k] * factor, w.v[p][k]);
      }
    }
    write_part<T, P>(part, y + row * channels, channels);
  }
}

template <typename T, int P, RmsNormKind kKind>
__global__ void __launch_bounds__(kThreads)
    norm_short_rows_backward(const T* __restrict__ x, Element weight_type,
                             const void* __restrict__ weight, const float* __restrict__ rstd,
                             const T* __restrict__ dy, const T* __restrict__ residual,
                             T* __restrict__ dx, float* __restrict__ partials, int64_t tokens,
                             int64_t channels) {
  const Part<P> w = weight_part<T, P, kKind>(weight_type, weight, channels);
  Part<P> sums = {};
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < tokens; row += stride) {
    const Part<P> px = read_part<T, P>(x + row * channels, channels);
    const Part<P> pdy = read_part<T, P>(dy + row * channels, channels);
    const float factor = rstd[row];
    const float product =
        sum_over_row<P>([&](int p, int k) { return pdy.v[p][k] * w.v[p][k] * px.v[p][k]; });
    const float dot = product / static_cast<float>(channels) * factor * factor;
    Part<P> out = {};
    if (residual != nullptr) out = read_part<T, P>(residual + row * channels, channels);
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        out.v[p][k] += factor * (pdy.v[p][k] * w.v[p][k] - px.v[p][k] * dot);
        sums.v[p][k] += pdy.v[p][k] * px.v[p][k] * factor;
      }
    }
    write_part<T, P>(out, dx + row * channels, channels);
  }
  if (partials == nullptr) return;  // the whole grid
  __shared__ float shared[kOfPack * kMostPacks];
  add_warps<P>(sums, shared, channels, partials);
}

}  // namespace

bool are_short_rows(const RmsNormArguments& a, std::initializer_list<const void*> others) {
  bool fits = a.channels <= kOfPack * kMostPacks && a.channels % kN == 0 && is_aligned(a.x) &&
              is_aligned(a.weight);
  for (const void* other : others) fits = fits && is_aligned(other);
  return fits;
}

void rms_norm_short(const RmsNormArguments& a, void* y, double eps, Stream stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_packs(a.channels, a.kind, [&]<int P, RmsNormKind kKind>() {
      launch("rms_norm", norm_short_rows<T, P, kKind>, {blocks_of(a.tokens), kThreads}, stream,
             static_cast<const T*>(a.x), a.weight_type, a.weight, a.rstd, static_cast<T*>(y),
             a.tokens, a.channels, eps);
    });
  });
}

void rms_norm_short_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                             Stream stream) {
  const int64_t blocks =
      partials != nullptr ? rms_norm_partials(a.tokens, a.channels) : blocks_of(a.tokens);
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_packs(a.channels, a.kind, [&]<int P, RmsNormKind kKind>() {
      launch("rms_norm_backward", norm_short_rows_backward<T, P, kKind>, {blocks, kThreads}, stream,
             static_cast<const T*>(a.x), a.weight_type, a.weight, a.rstd,
             static_cast<const T*>(g.dy), static_cast<const T*>(g.residual), static_cast<T*>(g.dx),
             partials, a.tokens, a.channels);
    });
  });
}

}  // namespace strata::ops::cuda
