// Oracle: the formula in double (tests/unit/ops/activation_cases.h), differentiated by autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "../ops/activation_cases.h"
#include "../ops/reference.h"
#include "kernel_arguments.h"
#include "strata/ops/xielu_kernels.h"

namespace strata::ops {
namespace {

TEST(CudaKernels, Xielu) {
  at::manual_seed(9);
  const Guarded numbers(at::tensor({0.7f, 1.3f, 0.4f, -0.05f}));
  for (const at::ScalarType type : kTypes) {
    for (const Size& size :
         std::vector<Size>{{1, 1}, {3, 7}, {5, 64}, {2, 2056}, {3, 64, 1}, {4, 33}}) {
      const Guarded x(random({size.rows, size.columns}, type, 2.0), size.offset);
      const Guarded y({size.rows, size.columns}, type), dy(random({size.rows, size.columns}, type));
      const Guarded sums({size.rows, 2}, at::kFloat);
      const at::Tensor x64 = leaf(*x), by64 = leaf(*numbers), y64 = reference::xielu(x64, by64);
      const XieluArguments a{element_of(type), numbers.as<float>(), size.rows, size.columns};
      cuda::xielu(a, x.data(), y.data(), kStream);
      EXPECT_LT(relative_error(*y, y64), tolerance_of(type)) << name_of(size, type);
      torch::autograd::backward({y64}, {wide(*dy)});
      cuda::xielu_backward(a, x.data(), dy.data(), sums.as<float>(), kStream);
      EXPECT_LT(relative_error(*x, x64.grad()), tolerance_of(type)) << name_of(size, type);
      EXPECT_LT(relative_error((*sums).sum(0), by64.grad().narrow(0, 0, 2)), tolerance_of(type))
          << name_of(size, type);
    }
  }
}

// Below what exp can tell from 0, near 0 and beyond eps.
TEST(CudaKernels, XieluAtItsEnds) {
  const Guarded numbers(at::tensor({0.7f, 1.3f, 0.4f, -1e-6f}));
  const Guarded x(
      at::tensor({-300.0f, -88.0f, -0.1f, -1e-3f, -1e-7f, 0.0f, 1e-3f, 90.0f}).view({1, 8}));
  const Guarded y({1, 8}, at::kFloat);
  cuda::xielu({Element::kFloat, numbers.as<float>(), 1, 8}, x.data(), y.data(), kStream);
  EXPECT_TRUE(at::allclose(wide(*y), reference::xielu(wide(*x), wide(*numbers)), 1e-5, 1e-12))
      << *y;
}

}  // namespace
}  // namespace strata::ops
