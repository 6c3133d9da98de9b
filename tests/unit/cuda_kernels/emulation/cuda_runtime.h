// What the kernels use of CUDA's language, for a compiler of the CPU: words that mean nothing
// there, a thread's place, barriers, shuffles. Found before CUDA's own header of this name.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

inline void __syncthreads() { emulation::barrier(); }

template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lane_mask) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulation::exchange(bits, static_cast<unsigned>(lane_mask));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// A store that is one instruction: the address is a multiple of its size.
template <typename T>
void __stwb(T* to, T value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T) != 0) emulation::fail("a misaligned store");
  *to = value;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

// The fast ones: by a power of two, and with the documented hole beyond 2^126.
inline float __expf(float x) { return std::exp2(x * 1.44269504f); }
inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f ? a * 0.0f : a / b; }
