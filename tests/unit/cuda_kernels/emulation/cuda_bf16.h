// CUDA's bf16 for a compiler of the CPU: memory and two conversions.
#pragma once

#include <c10/util/BFloat16.h>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) { return c10::detail::f32_from_bits(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {c10::detail::round_to_nearest_even(x)};
}
