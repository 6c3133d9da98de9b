// Oracle: where the one bad number was put; sums that overflow are of good ones.
#include "strata/checkpoint/finite_values.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/file.h"

namespace strata::checkpoint {
namespace {

// More than two pieces.
constexpr int64_t kNumel = 2 * (int64_t{1} << 18) + 3;

// A byte in front: a tensor of a file may begin at any byte.
bool is_finite_in_file(const at::Tensor& values) {
  const strata::testing::TemporaryFolder folder;
  const at::Tensor flat = values.contiguous();
  std::string bytes(1, '\0');
  bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  const MappedFile file(folder.put("tensor", bytes));
  return is_finite(file.data().subspan(1), values.scalar_type());
}

class FiniteValues : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(FiniteValues, OneBadNumberAnywhereIsFound) {
  const at::Tensor good = at::linspace(-2, 2, kNumel, at::kFloat).to(GetParam());
  EXPECT_TRUE(is_finite(good));
  EXPECT_TRUE(is_finite_in_file(good));
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    // This type has no infinity.
    if (GetParam() == at::kFloat8_e4m3fn && std::isinf(bad)) continue;
    for (const int64_t place : {int64_t{0}, (int64_t{1} << 18) - 1, int64_t{1} << 18, kNumel - 1}) {
      at::Tensor values = good.clone();
      values.narrow(0, place, 1).copy_(at::full({1}, bad).to(GetParam()));
      EXPECT_FALSE(is_finite(values)) << bad << " at " << place;
      EXPECT_FALSE(is_finite_in_file(values)) << bad << " at " << place;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FiniteValues,
                         ::testing::Values(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,
                                           at::kFloat8_e4m3fn, at::kFloat8_e5m2),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(FiniteValues, SumsMayOverflow) {
  const at::Tensor large[] = {at::full({kNumel}, 3e38), at::full({kNumel}, 1e300, at::kDouble),
                              at::full({kNumel}, -3e38, at::kBFloat16)};
  for (const at::Tensor& values : large) {
    EXPECT_TRUE(is_finite(values)) << values.scalar_type();
    EXPECT_TRUE(is_finite_in_file(values)) << values.scalar_type();
  }
}

TEST(FiniteValues, WhatIsNotFlatOrHoldsNoSuchNumber) {
  at::Tensor matrix = at::ones({3, 5});
  EXPECT_TRUE(is_finite(matrix.t()));
  matrix[2][4] = NAN;
  EXPECT_FALSE(is_finite(matrix.t()));
  EXPECT_TRUE(is_finite(at::full({4}, -1, at::kLong)));
  EXPECT_TRUE(is_finite(at::empty({0})));
  EXPECT_TRUE(is_finite({}, at::kFloat));
}

}  // namespace
}  // namespace strata::checkpoint
