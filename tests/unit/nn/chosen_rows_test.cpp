// Oracle: libtorch's index_select() and its own derivative.
#include "strata/nn/chosen_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace strata::nn {
namespace {

TEST(ChosenRows, AndTheirGradientsAreThoseOfLibtorch) {
  at::manual_seed(5);
  const at::Tensor rows = at::tensor({4, 0, 4, 2}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor values = at::randn({6, 3, 5}).to(type), dy = at::randn({4, 3, 5}).to(type);
    const at::Tensor x = values.clone().requires_grad_(true);
    const at::Tensor expected_x = values.clone().requires_grad_(true);
    const at::Tensor y = chosen_rows(x * 1.0, rows);
    const at::Tensor expected = (expected_x * 1.0).index_select(0, rows);
    torch::autograd::backward({y}, {dy});
    torch::autograd::backward({expected}, {dy});
    EXPECT_TRUE(at::equal(y, expected));
    EXPECT_TRUE(at::equal(x.grad(), expected_x.grad()));
  }
}

}  // namespace
}  // namespace strata::nn
