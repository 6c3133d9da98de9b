// Oracle: buckets as transformers' T5Attention gives them (golden), and a table written out.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/nn/attention/relative_bias.h"

namespace strata::nn {
namespace {

TEST(RelativeBias, BucketsAreTheReferences) {
  const int64_t distances[] = {-200, -128, -64, -20, -16, -15, -8, -1, 0,   1,
                               7,    8,    9,   12,  16,  20,  30, 64, 127, 128};
  const int64_t both[] = {15, 15, 14, 10, 10, 9,  8,  1,  0,  17,
                          23, 24, 24, 25, 26, 26, 27, 30, 31, 31};
  const int64_t behind[] = {31, 31, 26, 17, 16, 15, 8, 1, 0};
  for (size_t i = 0; i < std::size(distances); ++i) {
    EXPECT_EQ(bucket_of(distances[i], {}), both[i]) << distances[i];
    const int64_t expected = i < std::size(behind) ? behind[i] : 0;
    EXPECT_EQ(bucket_of(distances[i], {.both_directions = false}), expected) << distances[i];
  }
}

}  // namespace
}  // namespace strata::nn
