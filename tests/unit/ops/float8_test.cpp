// Oracle: libtorch's own type of 8 bits.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/base/float8.h"

namespace strata::ops {
namespace {

TEST(Float8, EveryPatternIsWhatLibtorchSays) {
  const at::Tensor patterns = at::arange(256, at::kByte);
  const at::Tensor expected = patterns.view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (int i = 0; i < 256; ++i) {
    const float value = fp8_e4m3_to_float(static_cast<uint8_t>(i));
    const float known = expected[i].item<float>();
    EXPECT_EQ(std::isnan(value), std::isnan(known)) << i;
    if (!std::isnan(known)) {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(known)) << i;
    }
    EXPECT_EQ(std::isnan(kFp8Values[static_cast<size_t>(i)]), std::isnan(value)) << i;
  }
  EXPECT_TRUE(std::isnan(kFp8Values[0x7f]) && std::isnan(kFp8Values[0xff]));
  EXPECT_EQ(kFp8Values[0x7e], 448.0f);
}

}  // namespace
}  // namespace strata::ops
