// Oracle: products of whole numbers in int64.
#include "strata/ops/quant/int8_product.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata::ops::quant {
namespace {

struct Size {
  int64_t rows, inner, columns;
};
constexpr Size kSizes[] = {{1, 1, 1},      {1, 64, 64},     {5, 29, 21},    {33, 1024, 40},
                           {18, 1025, 33}, {2, 2100, 1030}, {16, 4100, 17}, {3, 131071, 2}};

TEST(CodeProduct, EqualsWholeNumbers) {
  at::manual_seed(3);
  for (const auto& [rows, inner, columns] : kSizes) {
    at::Tensor a = at::randint(-128, 128, {rows, inner}, at::kChar);
    at::Tensor b = at::randint(-128, 128, {columns, inner}, at::kChar);
    for (const bool is_largest : {false, true}) {
      if (is_largest) {  // every sum of two terms is beyond 16 bits
        a.fill_(-128);
        b.fill_(-128);
      }
      const at::Tensor expected =
          a.to(at::kLong).unsqueeze(1).mul(b.to(at::kLong).unsqueeze(0)).sum(2).to(at::kInt);
      EXPECT_TRUE(at::equal(code_product(a, b), expected)) << rows << "x" << inner;
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        EXPECT_TRUE(at::equal(code_product_by(a, b, type), expected)) << rows << "x" << inner;
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops::quant
