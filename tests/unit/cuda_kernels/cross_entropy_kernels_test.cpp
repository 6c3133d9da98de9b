// Oracle: the CPU's kernel on the same logits, widened; rows apart beside rows in one piece.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernel_arguments.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

// As the CPU sees the same logits, widened. Row 0 has no target, two logits of row 1 are largest.
void check_cross_entropy(const CrossEntropyOptions& options) {
  at::manual_seed(4);
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{4, 2}, {5, 37}, {3, 4104}, {3, 9001}, {3, 64, 1}}) {
      at::Tensor values = random({size.rows, size.columns}, type, 4.0);
      at::Tensor targets = at::randint(size.columns, {size.rows}, at::kLong);
      targets[0] = -100;
      values[1][0] = values[1][size.columns - 1] = 30;
      targets[1] = size.columns - 1;
      const at::Tensor expected = values.to(at::kFloat).clone();
      const CrossEntropySums sums =
          cross_entropy_(expected, targets, 0.5f, /*want_gradient=*/true, options);
      for (const bool want_gradient : {false, true}) {
        const Guarded logits(values, size.offset);
        const Guarded rows({size.rows, cross_entropy_row_bytes()}, at::kByte);
        cuda::cross_entropy(
            {element_of(type), logits.data(), size.rows, size.columns, size.columns},
            targets.const_data_ptr<int64_t>(), 0.5f, want_gradient, options,
            rows.as<CrossEntropyRow>(), kStream);
        const CrossEntropySums found = sum_cross_entropy_rows(*rows);
        EXPECT_NEAR(found.loss, sums.loss, 1e-5 * std::abs(sums.loss)) << name_of(size, type);
        EXPECT_NEAR(found.entropy, sums.entropy, 1e-4 * std::max(1.0, sums.entropy));
        EXPECT_EQ(found.correct, sums.correct) << name_of(size, type);
        EXPECT_EQ(found.tokens, size.rows - 1);
        EXPECT_LT(relative_error(*logits, want_gradient ? expected : values), tolerance_of(type));
      }
    }
  }
}

// Rows apart, with something that is no number between them: as rows beside each other.
TEST(CudaKernels, CrossEntropyOfRowsApart) {
  at::manual_seed(4);
  for (const at::ScalarType type : kTypes) {
    for (const auto& [columns, stride] : std::vector<std::pair<int64_t, int64_t>>{
             {37, 40}, {37, 41}, {4097, 4160}, {9, 64}, {64, 64}}) {
      const at::Tensor values = random({3, columns}, type, 4.0);
      const at::Tensor targets = at::tensor({columns - 1, int64_t{-100}, int64_t{0}}, at::kLong);
      const Guarded logits(values), apart({3, stride}, type);
      (*apart).narrow(1, 0, columns).copy_(values);
      const Guarded rows({3, cross_entropy_row_bytes()}, at::kByte),
          rows_apart({3, cross_entropy_row_bytes()}, at::kByte);
      const CrossEntropyOptions options{.softcap = 12.0f, .smoothing = 0.3f};
      const auto run = [&](const Guarded& x, int64_t row_stride, const Guarded& result) {
        cuda::cross_entropy({element_of(type), x.data(), 3, columns, row_stride},
                            targets.const_data_ptr<int64_t>(), 0.5f, /*want_gradient=*/true,
                            options, result.as<CrossEntropyRow>(), kStream);
      };
      run(logits, columns, rows);
      run(apart, stride, rows_apart);
      // Packs deal logits to other threads, so that sums round in another order.
      const at::Tensor found = (*apart).narrow(1, 0, columns);
      EXPECT_LT(relative_error(found, *logits), tolerance_of(type)) << columns << " of " << stride;
      EXPECT_TRUE((*apart).narrow(1, columns, stride - columns).isnan().all().item<bool>() ||
                  stride == columns);
      const auto sums = sum_cross_entropy_rows(*rows),
                 sums_apart = sum_cross_entropy_rows(*rows_apart);
      EXPECT_NEAR(sums_apart.loss, sums.loss, 1e-5 * std::abs(sums.loss));
      EXPECT_NEAR(sums_apart.entropy, sums.entropy, 1e-4);
      EXPECT_EQ(sums_apart.correct, sums.correct);
    }
  }
}

TEST(CudaKernels, CrossEntropy) {
  for (const float softcap : {0.0f, 12.0f}) {
    for (const float smoothing : {0.0f, 0.3f}) check_cross_entropy({softcap, smoothing});
  }
}

// Targets ahead by 10 and by 12, whose shares less 1 are beyond what fp32 holds beside 1.
TEST(CudaKernels, CrossEntropyOfASureTarget) {
  const at::Tensor values = at::tensor({10.0f, 0.0f, -12.0f, 0.0f}).view({2, 2});
  const at::Tensor targets = at::tensor({0, 1}, at::kLong);
  const Guarded logits(values), rows({2, cross_entropy_row_bytes()}, at::kByte);
  cuda::cross_entropy({Element::kFloat, logits.data(), 2, 2, 2}, targets.const_data_ptr<int64_t>(),
                      1.0f, /*want_gradient=*/true, {}, rows.as<CrossEntropyRow>(), kStream);
  const double left[] = {1 / (1 + std::exp(10.0)), 1 / (1 + std::exp(12.0))};
  EXPECT_NEAR((*logits)[0][0].item<float>() / left[0], -1, 1e-6);
  EXPECT_NEAR((*logits)[1][1].item<float>() / left[1], -1, 1e-6);
}

// In one pack, where other threads' packs say nothing of the order.
TEST(CudaKernels, CrossEntropyOfEqualNeighbours) {
  for (const at::ScalarType type : kTypes) {
    at::Tensor values = at::zeros({3, 64}, type);
    values.narrow(1, 9, 2).fill_(2);
    const at::Tensor targets = at::tensor({9, 10, 8}, at::kLong);
    const Guarded logits(values), rows({3, cross_entropy_row_bytes()}, at::kByte);
    cuda::cross_entropy({element_of(type), logits.data(), 3, 64, 64},
                        targets.const_data_ptr<int64_t>(), 1.0f, /*want_gradient=*/true, {},
                        rows.as<CrossEntropyRow>(), kStream);
    const CrossEntropyRow* found = rows.as<CrossEntropyRow>();
    EXPECT_EQ(found[0].correct, 1);
    EXPECT_EQ(found[1].correct, 0);
    EXPECT_EQ(found[2].correct, 0);
  }
}

// Beside the CPU: a thread's first packs hold no number that counts, its sums begin again at a far
// larger one, and one logit alone counts.
TEST(CudaKernels, CrossEntropyOfExtremeLogits) {
  at::manual_seed(4);
  const int64_t columns = 3 * 4096;
  at::Tensor values = random({4, columns}, at::kFloat, 4.0);
  values[0].narrow(0, 0, 2 * 4096).fill_(-INFINITY);
  values[1].narrow(0, 0, 4096).fill_(-3e38f);
  values[1][8192] = 3e38f;
  values[2].fill_(-INFINITY);
  values[2][5] = 1;
  values[3][columns - 1] = 1e4f;
  const at::Tensor targets =
      at::tensor({columns - 1, int64_t{8192}, int64_t{5}, int64_t{7}}, at::kLong);
  const at::Tensor expected = values.clone();
  const CrossEntropySums sums = cross_entropy_(expected, targets, 1.0f, /*want_gradient=*/true);
  const Guarded logits(values), rows({4, cross_entropy_row_bytes()}, at::kByte);
  cuda::cross_entropy({Element::kFloat, logits.data(), 4, columns, columns},
                      targets.const_data_ptr<int64_t>(), 1.0f, /*want_gradient=*/true, {},
                      rows.as<CrossEntropyRow>(), kStream);
  const CrossEntropySums found = sum_cross_entropy_rows(*rows);
  EXPECT_NEAR(found.loss, sums.loss, 1e-5 * sums.loss);
  EXPECT_NEAR(found.entropy, sums.entropy, 1e-4 * sums.entropy);
  EXPECT_EQ(found.correct, sums.correct);
  EXPECT_LT(relative_error(*logits, expected), 1e-5);
}

TEST(CudaKernels, CrossEntropyShowsBrokenLogits) {
  for (const float broken : {std::nanf(""), INFINITY}) {
    at::Tensor values = at::zeros({2, 40});
    values[1][7] = broken;
    const at::Tensor targets = at::full({2}, 3, at::kLong);
    const Guarded logits(values), rows({2, cross_entropy_row_bytes()}, at::kByte);
    cuda::cross_entropy({Element::kFloat, logits.data(), 2, 40, 40},
                        targets.const_data_ptr<int64_t>(), 1.0f, /*want_gradient=*/true, {},
                        rows.as<CrossEntropyRow>(), kStream);
    EXPECT_TRUE(std::isnan(sum_cross_entropy_rows(*rows).loss));
    EXPECT_TRUE((*logits)[0].isfinite().all().item<bool>());
    EXPECT_FALSE((*logits)[1].isfinite().any().item<bool>());
  }
}

}  // namespace
}  // namespace strata::ops
