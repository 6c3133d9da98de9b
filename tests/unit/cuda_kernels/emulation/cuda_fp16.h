// CUDA's fp16 for a compiler of the CPU: memory and two conversions.
#pragma once

#include <c10/util/Half.h>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) { return c10::detail::fp16_ieee_to_fp32_value(x.bits); }
inline __half __float2half_rn(float x) { return {c10::detail::fp16_ieee_from_fp32_value(x)}; }
