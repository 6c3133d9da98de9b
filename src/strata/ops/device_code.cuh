// What all CUDA kernels share: element types, packs of 16 bytes, sums over a warp and a block. Seen
// by nvcc and by the emulation of tests/unit/cuda_kernels. Owns: no kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "strata/ops/element.h"
#include "strata/ops/launch.cuh"

namespace strata::ops::cuda {

using BFloat16 = __nv_bfloat16;
using Half = __half;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BFloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(Half x) { return __half2float(x); }

__device__ inline float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

template <typename T>
constexpr Element kElementOf = Element::kFloat;
template <>
inline constexpr Element kElementOf<BFloat16> = Element::kBFloat16;
template <>
inline constexpr Element kElementOf<Half> = Element::kHalf;

// Rounds to nearest even.
template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline BFloat16 from_float<BFloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline Half from_float<Half>(float x) {
  return __float2half_rn(x);
}

// exp and a quotient whose result comes to rest as T. Of 16 bits the last bits of fp32 are lost
// anyway, and the chip's own instructions cost a third: products of few operations an element are
// bound by instructions, not by memory. `divide` gives 0 beyond 2^126, as sigmoids want it.
template <typename T>
__device__ inline float exp_to(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}
template <typename T>
__device__ inline float divide_to(float x, float by) {
  if constexpr (std::is_same_v<T, float>) {
    return x / by;
  } else {
    return __fdividef(x, by);
  }
}

// One element of memory whose type is known at run time: for small arrays such as a norm's weight.
__device__ inline float read_element(Element type, const void* base, int64_t i) {
  if (type == Element::kFloat) return static_cast<const float*>(base)[i];
  if (type == Element::kHalf) return to_float(static_cast<const Half*>(base)[i]);
  return to_float(static_cast<const BFloat16*>(base)[i]);
}
__device__ inline void write_element(Element type, void* base, int64_t i, float x) {
  if (type == Element::kFloat) {
    static_cast<float*>(base)[i] = x;
  } else if (type == Element::kHalf) {
    static_cast<Half*>(base)[i] = from_float<Half>(x);
  } else {
    static_cast<BFloat16*>(base)[i] = from_float<BFloat16>(x);
  }
}

// N elements that are read and written at once; the address is a multiple of its size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <typename T, int N>
__device__ inline Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
// `to`: global memory. By the instruction's own name: of an assignment the compiler makes as many
// stores as there are elements, where they come out of divisions.
template <typename T, int N>
__device__ inline void store(T* to, const Pack<T, N>& pack) {
  if constexpr (N == 1) {
    *to = pack.v[0];
  } else {
    static_assert(sizeof(pack) == 16 || sizeof(pack) == 8);
    using Word = std::conditional_t<sizeof(pack) == 16, uint4, uint2>;
    Word word;
    memcpy(&word, &pack, sizeof(word));
    __stwb(reinterpret_cast<Word*>(to), word);
  }
}

// Elements of 16 bytes.
template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Calls `use` with a value of the C++ type: use(float{}) and so on.
template <typename Use>
void with_type(Element type, const Use& use) {
  switch (type) {
    case Element::kFloat:
      return use(float{});
    case Element::kBFloat16:
      return use(BFloat16{});
    case Element::kHalf:
      return use(Half{});
  }
}

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <typename T>
__device__ inline T warp_sum(T x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// The sum over all threads of a block, known to all of them. Requires: whole warps, at most 1024
// threads; every thread calls it.
template <typename T>
__device__ inline T block_sum(T x) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  __syncthreads();  // an earlier call's values have been read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? of_warp[lane] : T(0));
}
__device__ inline float block_max(float x) {
  __shared__ float of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? of_warp[lane] : -INFINITY);
}

// N elements of a small array from i on; `Word` is the type of what they belong to. Requires: an
// address that is a multiple of 16 bytes, i a multiple of N.
template <typename Word, int N>
__device__ inline void read_pack(Element type, const void* base, int64_t i, float* out) {
  if (type == kElementOf<Word>) {
    const Pack<Word, N> pack = load<Word, N>(static_cast<const Word*>(base) + i);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = to_float(pack.v[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = read_element(type, base, i + k);
}

// Whole warps for `items`, at most `most`.
inline int threads_for(int64_t items, int most) {
  const int64_t threads = (items + 31) / 32 * 32;
  return static_cast<int>(threads < 32 ? 32 : threads > most ? most : threads);
}

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace strata::ops::cuda
