// bfloat16 and IEEE half (fp16) as bit patterns, to and from float, rounding to nearest even.
// Never: arithmetic; kernels live in ops/.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace strata {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN keeps its sign and stays a NaN (quiet), whatever its payload.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A selection, not a branch: loops over it can be vectorised.
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) {  // infinity or NaN
    const uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24 is exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// Beyond 65504 (after rounding) becomes infinity, as hardware conversion does.
inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65536
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds at the right bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  // A carry out of the fraction correctly raises the exponent, up to infinity.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Whole buffers. Requires: both spans have the same length.
inline void bf16_to_float(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = bf16_to_float(from[i]);
}
inline void float_to_bf16(std::span<const float> from, std::span<uint16_t> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = float_to_bf16(from[i]);
}
inline void fp16_to_float(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = fp16_to_float(from[i]);
}
inline void float_to_fp16(std::span<const float> from, std::span<uint16_t> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = float_to_fp16(from[i]);
}

}  // namespace strata
