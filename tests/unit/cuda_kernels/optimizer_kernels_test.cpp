// Oracle: the CPU's kernel, and a sum of ATen in double.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernel_arguments.h"
#include "strata/ops/adamw.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

RoundedCopy copy_into(const Guarded& memory, at::ScalarType type) {
  if (type == at::kFloat) return {};
  return {.type = element_of(type), .data = memory.data()};
}

TEST(CudaKernels, AdamW) {
  at::manual_seed(7);
  const AdamWStep options{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .step = 7,
                          .grad_scale = 0.5f};
  // Of the copy; that of fp32: none.
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {1, 1023}, {1, 4096}, {1, 1000, 1}}) {
      const at::Tensor p = at::randn({size.columns}), g = at::randn({size.columns});
      const at::Tensor m = at::randn({size.columns}) * 0.1, v = m.square();
      const Guarded p_found(p, size.offset), m_found(m, size.offset), v_found(v, size.offset);
      const Guarded gradient(g, size.offset), copy({size.columns}, type, size.offset);
      cuda::adamw({.param = p_found.as<float>(),
                   .grad = gradient.as<float>(),
                   .exp_avg = m_found.as<float>(),
                   .exp_avg_sq = v_found.as<float>(),
                   .n = size.columns,
                   .copy = copy_into(copy, type)},
                  factors_of(options), kStream);
      adamw_(p, g, m, v, options);
      EXPECT_LT(relative_error(*p_found, p), 1e-6);
      EXPECT_LT(relative_error(*m_found, m), 1e-6);
      EXPECT_LT(relative_error(*v_found, v), 1e-6);
      if (type == at::kFloat) continue;
      EXPECT_TRUE(at::equal(*copy, (*p_found).to(type))) << name_of(size, type);
    }
  }
}

void check_square_sum(const Size& size, at::ScalarType type) {
  const Guarded x(random({size.columns}, type), size.offset);
  const Guarded partials({cuda::square_sum_partials(size.columns)}, at::kDouble);
  cuda::square_sum(element_of(type), x.data(), size.columns, partials.as<double>(), kStream);
  EXPECT_LT(relative_error((*partials).sum(), wide(*x).square().sum()), 1e-12)
      << name_of(size, type);
}

// Around what a block takes, with and without loads ahead, with a pack that is not full; single
// elements where the address is odd.
TEST(CudaKernels, SquareSum) {
  at::manual_seed(8);
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1},
                                              {1, 7},
                                              {1, 4095},
                                              {1, 4096},
                                              {1, 4099},
                                              {1, 16384},
                                              {1, 140001},
                                              {1, 4096, 1},
                                              {1, 20003, 1}}) {
      check_square_sum(size, type);
    }
  }
}

TEST(CudaKernels, SquareSumOfMoreThanAGridTakesAtOnce) {
  at::manual_seed(8);
  const int64_t one_turn = cuda::square_sum_partials(int64_t{1} << 40) * 4096;
  check_square_sum({1, one_turn + 5003}, at::kFloat);
}

}  // namespace
}  // namespace strata::ops
