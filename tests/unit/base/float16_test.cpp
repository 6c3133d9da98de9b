// Oracle: every 16-bit pattern against std::ldexp, and rounding by comparing with both neighbours.
#include "strata/base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace strata {
namespace {

double fp16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Fp16, EveryPatternReadsAndRoundTrips) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = fp16_to_float(bits);
    if ((bits & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(value), (bits & 0x3ff) != 0);
      EXPECT_EQ(std::isnan(fp16_to_float(float_to_fp16(value))), (bits & 0x3ff) != 0);
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), fp16_value(bits)) << i;
    ASSERT_EQ(float_to_fp16(value), bits) << i;
  }
}

// Halfway between neighbours goes to the even one; a hair to either side goes there.
template <typename ToFloat, typename ToBits>
void check_rounding(uint16_t last_finite, ToFloat to_float, ToBits to_bits) {
  for (uint32_t i = 0; i < last_finite; ++i) {
    const auto low = static_cast<uint16_t>(i);
    const auto high = static_cast<uint16_t>(i + 1);
    const double middle = (static_cast<double>(to_float(low)) + to_float(high)) / 2;
    const auto half = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(half), middle);
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_EQ(to_bits(half), (low & 1) == 0 ? low : high) << i;
    ASSERT_EQ(to_bits(std::nextafter(half, 0.0f)), low) << i;
    ASSERT_EQ(to_bits(std::nextafter(half, infinity)), high) << i;
    ASSERT_EQ(to_bits(-half), static_cast<uint16_t>(0x8000 | to_bits(half))) << i;
  }
}

TEST(Fp16, RoundsToNearestEven) {
  check_rounding(
      0x7bff, [](uint16_t bits) { return fp16_to_float(bits); },
      [](float value) { return float_to_fp16(value); });
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(1e30f), 0x7c00);
  EXPECT_EQ(float_to_fp16(1e-30f), 0);
}

TEST(Bf16, RoundsToNearestEven) {
  check_rounding(
      0x7f7f, [](uint16_t bits) { return bf16_to_float(bits); },
      [](float value) { return float_to_bf16(value); });
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
}

TEST(Bf16, NanStaysNan) {
  // A payload in the low half alone must not round to infinity.
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(nan))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0xffffffffu)))));
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(nan))));
}

TEST(Float16, WholeBuffers) {
  const float values[] = {1.0f, -2.5f, 0.0f};
  uint16_t bits[3];
  float back[3];
  float_to_bf16(values, bits);
  bf16_to_float(bits, back);
  EXPECT_EQ(back[1], -2.5f);
  float_to_fp16(values, bits);
  fp16_to_float(bits, back);
  EXPECT_EQ(back[1], -2.5f);
}

}  // namespace
}  // namespace strata
