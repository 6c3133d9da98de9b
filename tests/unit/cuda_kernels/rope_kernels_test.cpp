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

void check_rope(RopePairs pairs) {
  const auto expected_of =
      pairs == RopePairs::kHalves ? reference::rope : reference::rope_of_neighbours;
  for (const at::ScalarType type : kTypes) {
    for (const auto& [tokens, heads, half, gap] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 1, 0}, {3, 5, 3, 1}, {4, 32, 64, 0}, {2, 3, 8, 2}, {2, 40, 16, 0}}) {
      const Guarded buffer(random({tokens, heads + gap, 2 * half}, type));
      const at::Tensor x = (*buffer).narrow(1, gap, heads), before = wide(*buffer);
      const at::Tensor angles = at::randn({tokens, half}, at::kDouble) * 3;
      const Guarded cos(angles.cos().to(at::kFloat)), sin(angles.sin().to(at::kFloat));
      RopeArguments arguments{.type = element_of(type),
                              .x = {x.data_ptr(), x.stride(0), x.stride(1), heads},
                              .cos = cos.as<float>(),
                              .sin = sin.as<float>(),
                              .tokens = tokens,
                              .half = half,
                              .inverse = false,
                              .pairs = pairs};
      const at::Tensor expected =
          expected_of(before.narrow(1, gap, heads), angles.cos(), angles.sin());
      cuda::rope(arguments, kStream);
      EXPECT_LT(relative_error(x, expected), tolerance_of(type)) << heads << " heads of " << half;
      arguments.inverse = true;
      cuda::rope(arguments, kStream);
      EXPECT_LT(relative_error(*buffer, before), tolerance_of(type)) << "turned back";
    }
  }
}

TEST(CudaKernels, Rope) {
  at::manual_seed(2);
  check_rope(RopePairs::kHalves);
  check_rope(RopePairs::kNeighbours);
}

}  // namespace
}  // namespace strata::ops
