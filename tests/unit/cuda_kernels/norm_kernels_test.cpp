// Oracle: the formulas in double (tests/unit/ops/reference.h), differentiated by autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "../ops/reference.h"
#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

void check_rms_norm(const Size& size, at::ScalarType type, at::ScalarType weight_type,
                    RmsNormKind kind = RmsNormKind::kLlama) {
  const at::Tensor values = random({size.rows, size.columns}, type);
  const Guarded x(values, size.offset), y(values.sizes(), type, size.offset);
  const Guarded weight(random({size.columns}, weight_type)), rstd({size.rows}, at::kFloat);
  const Guarded dy(random(values.sizes(), type)), residual(random(values.sizes(), type));
  const RmsNormArguments a{element_of(type), element_of(weight_type),
                           x.data(),         weight.data(),
                           rstd.as<float>(), size.rows,
                           size.columns,     kind};
  cuda::rms_norm(a, y.data(), 1e-6, kStream);
  const at::Tensor x64 = leaf(*x), w64 = leaf(*weight);
  const at::Tensor y64 = kind == RmsNormKind::kGemma ? reference::gemma_norm(x64, w64, 1e-6)
                                                     : reference::rms_norm(x64, w64, 1e-6);
  EXPECT_LT(relative_error(*y, y64), tolerance_of(type)) << name_of(size, type);
  torch::autograd::backward({y64}, {wide(*dy)});
  for (const float beta : {0.0f, 1.0f}) {
    const Guarded dx(values.sizes(), type, size.offset);
    const Guarded dweight(at::ones({size.columns}, at::kFloat));
    const Guarded partials({cuda::rms_norm_partials(size.rows, size.columns), size.columns},
                           at::kFloat);
    cuda::rms_norm_backward(
        a, {dy.data(), residual.data(), dx.data(), dweight.data(), Element::kFloat, beta},
        partials.as<float>(), kStream);
    EXPECT_LT(relative_error(*dx, x64.grad() + wide(*residual)), tolerance_of(type));
    EXPECT_LT(relative_error(*dweight, w64.grad() + beta), tolerance_of(type))
        << name_of(size, type);
  }
  const Guarded frozen(values.sizes(), type, size.offset);
  cuda::rms_norm_backward(a, {dy.data(), nullptr, frozen.data(), nullptr, Element::kFloat, 0},
                          nullptr, kStream);
  EXPECT_LT(relative_error(*frozen, x64.grad()), tolerance_of(type)) << name_of(size, type);
}

// Short rows have a warp each, longer ones a block; sums of 8200 channels do not fit shared memory.
TEST(CudaKernels, RmsNorm) {
  at::manual_seed(1);
  const std::vector<Size> sizes = {{3, 7},    {19, 64},    {70, 128},  {9, 300},
                                   {5, 511},  {3, 520},    {2, 513},   {70, 8},
                                   {2, 4200}, {4, 640, 1}, {9, 64, 1}, {2, 8200}};
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : sizes) {
      check_rms_norm(size, type, type);
      check_rms_norm(size, type, at::kFloat);
      check_rms_norm(size, type, type, RmsNormKind::kGemma);
      check_rms_norm(size, type, at::kFloat, RmsNormKind::kGemma);
      check_rms_norm(size, type, type, RmsNormKind::kOlmo);
    }
  }
}

// More rows than there are blocks, or warps, of the grid.
TEST(CudaKernels, RmsNormOfManyRows) {
  at::manual_seed(9);
  check_rms_norm({2200, 8}, at::kBFloat16, at::kBFloat16);
  check_rms_norm({300, 520}, at::kFloat, at::kFloat);
}

}  // namespace
}  // namespace strata::ops
