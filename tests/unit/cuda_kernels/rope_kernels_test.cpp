// Oracle: the formula in double (tests/unit/ops/reference.h), and the way back.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "../ops/reference.h"
#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

TEST(CudaKernels, Rope) {
  at::manual_seed(2);
  for (const at::ScalarType type : kTypes) {
    for (const auto& [tokens, heads, half, gap] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 1, 0}, {3, 5, 3, 1}, {4, 32, 64, 0}, {2, 3, 8, 2}, {2, 40, 16, 0}}) {
      const Guarded buffer(random({tokens, heads + gap, 2 * half}, type));
      const at::Tensor x = (*buffer).narrow(1, gap, heads), before = wide(*buffer);
      const at::Tensor angles = at::randn({tokens, half}, at::kDouble) * 3;
      const Guarded cos(angles.cos().to(at::kFloat)), sin(angles.sin().to(at::kFloat));
      const HeadsView view{x.data_ptr(), x.stride(0), x.stride(1), heads};
      const at::Tensor expected =
          reference::rope(before.narrow(1, gap, heads), angles.cos(), angles.sin());
      cuda::rope(element_of(type), view, cos.as<float>(), sin.as<float>(), tokens, half,
                 /*inverse=*/false, kStream);
      EXPECT_LT(relative_error(x, expected), tolerance_of(type)) << heads << " heads of " << half;
      cuda::rope(element_of(type), view, cos.as<float>(), sin.as<float>(), tokens, half,
                 /*inverse=*/true, kStream);
      EXPECT_LT(relative_error(*buffer, before), tolerance_of(type)) << "turned back";
    }
  }
}

}  // namespace
}  // namespace strata::ops
