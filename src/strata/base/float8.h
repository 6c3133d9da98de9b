// The 8-bit floating point type E4M3 (float8_e4m3fn) as bit patterns, to float. Never: rounding to
// it, scales (hf/fp8.h). Source: Micikevicius et al., FP8 Formats for Deep Learning, 2022.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace strata {

// Every value is exact. There is no infinity: the largest pattern of either sign is NaN.
constexpr float fp8_e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu, fraction = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-9
    const float magnitude = static_cast<float>(fraction) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (fraction << 20));
}

// By pattern.
inline constexpr std::array<float, 256> kFp8Values = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = fp8_e4m3_to_float(static_cast<uint8_t>(i));
  return values;
}();

}  // namespace strata
