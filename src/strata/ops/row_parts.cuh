// Rows of at most 512 elements, each in the registers of a warp: what the norms of short rows share.
// Owns: which element a lane has, sums over a row and over the rows of a block. Never: a kernel.
#pragma once

#include <cstdint>

#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda::row_parts {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kN = 4;                          // elements of a pack
constexpr int kMostPacks = 4;                  // of a lane
constexpr int64_t kOfPack = int64_t{32} * kN;  // channels of a warp's pack
constexpr int64_t kMostBlocks = 1056;          // eight a multiprocessor of an H100

// What a lane has of a row: pack p of all packs is channels [kOfPack p + kN lane, + kN).
template <int P>
struct Part {
  float v[P][kN];
};

__device__ inline int64_t channel_of(int pack) {
  return kOfPack * pack + int64_t{kN} * (threadIdx.x % 32);
}

// The sum of f(p, k) over what all lanes of the warp have.
template <int P, typename F>
__device__ inline float sum_over_row(const F& f) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < kN; ++k) sum += f(p, k);
  }
  return warp_sum(sum);
}

// The sums of the block's warps, in their order, as the block's row of `partials`.
template <int P>
__device__ inline void add_warps(const Part<P>& sums, float* shared, int64_t channels,
                                 float* __restrict__ partials) {
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    if (threadIdx.x / 32 == warp) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if (channel_of(p) >= channels) continue;
#pragma unroll
        for (int k = 0; k < kN; ++k) {
          float& sum = shared[channel_of(p) + k];
          sum = (warp == 0 ? 0.0f : sum) + sums.v[p][k];
        }
      }
    }
    __syncthreads();
  }
  for (int64_t c = threadIdx.x; c < channels; c += kThreads) {
    partials[blockIdx.x * channels + c] = shared[c];
  }
}

// A warp a row, in turns where there are more.
inline int64_t blocks_of(int64_t tokens) {
  const int64_t blocks = divide_up(tokens, kWarps);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

}  // namespace strata::ops::cuda::row_parts
