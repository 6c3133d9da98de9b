// GELU by its approximation with tanh, x / 2 (1 + tanh(u)), as x * sigmoid(2u): what stands in the
// sigmoid, for the CPU's kernels and the GPU's. Never: a kernel.
#pragma once

#if defined(__CUDACC__)
#define STRATA_ON_EVERY_DEVICE __host__ __device__ __forceinline__
#else
#include "strata/base/vectorize.h"
#define STRATA_ON_EVERY_DEVICE STRATA_INLINE
#endif

namespace strata::ops {

struct GeluTanh {
  // 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3), and its derivative by x. Beyond 10 the sigmoid is 0 or
  // 1 in fp32, and powers of x that overflow would give NaN; a NaN falls through.
  float twice_u, slope;

  STRATA_ON_EVERY_DEVICE explicit GeluTanh(float x) {
    constexpr float kFirst = 1.5957691216057308f, kThird = 0.07135481627260025f;
    const float near = x > 10.0f ? 10.0f : x < -10.0f ? -10.0f : x;
    const float square = near * near;
    twice_u = near * (kFirst + kThird * square);
    slope = kFirst + 3.0f * kThird * square;
  }
};

}  // namespace strata::ops
