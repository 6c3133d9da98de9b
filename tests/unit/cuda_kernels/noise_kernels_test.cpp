// Oracle: the CPU's kernels, bit for bit where nothing is added.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/dropout.h"
#include "strata/ops/uniform_noise.h"

namespace strata::ops {
namespace {

TEST(CudaKernels, DropoutHasTheMasksOfTheCpu) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Size& size : std::vector<Size>{{1, 1}, {70, 513}, {3, 2064}, {4, 64, 1}}) {
      const Guarded x(random({size.rows, size.columns}, type), size.offset);
      const Guarded y({size.rows, size.columns}, type, size.offset);
      const at::Tensor keys = at::randint(1 << 30, {size.rows}, at::kLong);
      for (const double p : {0.25, 0.999, 1.0}) {
        cuda::dropout({element_of(type), x.data(), y.data(), keys.const_data_ptr<int64_t>(),
                       size.rows, size.columns, 77, p, /*add=*/false},
                      kStream);
        EXPECT_TRUE(at::equal(*y, ops::dropout((*x).contiguous(), p, keys, 77))) << p;
      }
    }
  }
}

TEST(CudaKernels, UniformNoiseIsThatOfTheCpu) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Size& size : std::vector<Size>{{1, 1}, {70, 513}, {3, 2064}, {4, 64, 1}}) {
      const at::Tensor values = random({size.rows, size.columns}, type);
      const Guarded x(values, size.offset);
      const at::Tensor keys = at::randint(1 << 30, {size.rows}, at::kLong);
      cuda::uniform_noise({element_of(type), x.data(), keys.const_data_ptr<int64_t>(), size.rows,
                           size.columns, 77, 0.5f},
                          kStream);
      add_uniform_noise_(values, 0.5, keys, 77);
      EXPECT_LT(relative_error(*x, values), type == at::kFloat ? 1e-6 : 1e-3)
          << name_of(size, type);
    }
  }
}

}  // namespace
}  // namespace strata::ops
