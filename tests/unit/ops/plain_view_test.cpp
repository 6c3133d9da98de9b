// Oracle: libtorch's own views of the same tensor.
#include "strata/libtorch/plain_view.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace strata {
namespace {

// The same bytes, shape and strides.
void expect_same(const at::Tensor& plain, const at::Tensor& view) {
  EXPECT_EQ(plain.sizes(), view.sizes());
  EXPECT_EQ(plain.strides(), view.strides());
  EXPECT_EQ(plain.const_data_ptr(), view.const_data_ptr());
  EXPECT_EQ(plain.is_contiguous(), view.is_contiguous());
  EXPECT_TRUE(at::equal(plain, view));
}

TEST(PlainView, EqualsLibtorchsViews) {
  const at::Tensor whole = at::arange(60, at::kFloat).view({6, 10});
  expect_same(plain_view(whole, 10, {5, 4}), whole.view({-1}).narrow(0, 10, 20).view({5, 4}));
  expect_same(plain_rows(whole, 2, 3), whole.narrow(0, 2, 3));
  expect_same(plain_columns(whole, 3, 4), whole.narrow(1, 3, 4));
  expect_same(plain_transposed(whole), whole.t());
}

TEST(PlainView, OfAViewThatHasStrides) {
  const at::Tensor columns = at::arange(60, at::kFloat).view({6, 10}).narrow(1, 2, 7);
  expect_same(plain_rows(columns, 1, 4), columns.narrow(0, 1, 4));
  expect_same(plain_columns(columns, 1, 5), columns.narrow(1, 1, 5));
  expect_same(plain_columns(plain_transposed(columns), 2, 3), columns.t().narrow(1, 2, 3));
  EXPECT_THROW(plain_view(columns, 0, {6, 7}), c10::Error);
}

TEST(PlainView, MatricesThatLieOneBehindTheOther) {
  const at::Tensor flat = at::arange(60, at::kFloat);
  const auto matrix = [&](int64_t begin, int64_t rows) {
    return plain_view(flat, begin, {rows, 5});
  };
  expect_same(joined_rows({matrix(10, 2), matrix(20, 3), matrix(35, 1)}),
              flat.narrow(0, 10, 30).view({6, 5}));
  EXPECT_FALSE(joined_rows({matrix(10, 2), matrix(21, 3)}).defined());          // a gap
  EXPECT_FALSE(joined_rows({matrix(20, 3), matrix(10, 2)}).defined());          // another order
  EXPECT_FALSE(joined_rows({matrix(10, 2), matrix(20, 3).clone()}).defined());  // elsewhere
  EXPECT_FALSE(joined_rows({matrix(10, 2), flat.narrow(0, 20, 8).view({2, 4})}).defined());
  EXPECT_FALSE(joined_rows({matrix(10, 2), matrix(20, 5).t()}).defined());  // columns
}

TEST(PlainView, NothingBeyondTheEnds) {
  const at::Tensor whole = at::zeros({6, 10});
  EXPECT_THROW(plain_view(whole, 50, {11}), c10::Error);
  EXPECT_THROW(plain_rows(whole, 4, 3), c10::Error);
  EXPECT_THROW(plain_columns(whole, -1, 3), c10::Error);
  EXPECT_THROW(plain_columns(whole, 8, 3), c10::Error);
  expect_same(plain_columns(whole, 10, 0), whole.narrow(1, 10, 0));
}

}  // namespace
}  // namespace strata
