// Elementary functions that the compiler can vectorise inside the loops of the CPU kernels
// (base/vectorize.h). Never: a kernel.
#pragma once

#include <cstdint>
#include <cstring>

#include "strata/base/vectorize.h"

namespace strata::ops {

STRATA_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
STRATA_INLINE float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

STRATA_INLINE float from_bf16(uint16_t x) { return bits_float(static_cast<uint32_t>(x) << 16); }
// Round to nearest even; NaN stays NaN.
STRATA_INLINE uint16_t to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded);
}

// exp(x - n ln 2) for the integer n next to x / ln 2, which stands in the low bits of `shifted`.
STRATA_INLINE float exp_of_remainder(float x, float& shifted) {
  // Adding and taking off 1.5 * 2^23 rounds to an integer.
  shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  // ln 2 in two parts: n * 0.693359375 is exact.
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r + 1.0f;
}

// exp(x), relative error below 2e-7; below -87.3 it is 0, above 88.3 it stays at 2.2e38; NaN gives
// NaN. Branch-free.
STRATA_INLINE float exp_vectorizable(float x) {
  const bool is_zero = x < -87.3f;
  // Written so that a NaN falls through.
  x = x > 88.3f ? 88.3f : x;
  float shifted;
  const float p = exp_of_remainder(x, shifted);
  const float power = bits_float((float_bits(shifted) - 0x4B400000u + 127u) << 23);
  return is_zero ? 0.0f : p * power;
}

// The same in fewer instructions for x that is not far above 0: n is added to the exponent.
STRATA_INLINE float exp_below_one(float x) {
  float shifted;
  const float p = exp_of_remainder(x, shifted);
  return x < -87.3f ? 0.0f : bits_float(float_bits(p) + (float_bits(shifted) << 23));
}

// tanh(x), relative error below 3e-7; NaN gives NaN. Branch-free. Near 0 Cephes' tanhf, whose
// polynomial is odd; beyond by exp, where 1 is taken off no small difference.
STRATA_INLINE float tanh_vectorizable(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (exp_vectorizable(2.0f * size) + 1.0f);
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float near = p * square * x + x;
  return size < 0.625f ? near : x < 0.0f ? -far : far;
}

}  // namespace strata::ops
