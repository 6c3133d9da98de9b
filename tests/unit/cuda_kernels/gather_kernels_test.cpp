// Oracle: sums and rows of ATen in double, and the rows of the table themselves.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

// The last two ids are outside the table: NaN, and no gradient.
TEST(CudaKernels, Embedding) {
  at::manual_seed(5);
  constexpr int64_t kVocabulary = 11, kTokens = 40;
  for (const at::ScalarType type : kTypes) {
    for (const int64_t channels : {1, 7, 64, 264}) {
      const Guarded weight(random({kVocabulary, channels}, type));
      at::Tensor ids = at::randint(kVocabulary, {kTokens}, at::kLong);
      ids.narrow(0, 3, 20).fill_(4);  // longer than what a thread reads at once
      const at::Tensor inside = ids.narrow(0, 0, kTokens - 2);
      ids[kTokens - 2] = -1;
      ids[kTokens - 1] = kVocabulary;
      const Guarded y({kTokens, channels}, type), dy(random({kTokens, channels}, type));
      cuda::embedding(weight.data(), kVocabulary, ids.const_data_ptr<int64_t>(), y.data(), kTokens,
                      channels * (*weight).element_size(), kStream);
      EXPECT_TRUE(at::equal((*y).narrow(0, 0, kTokens - 2), (*weight).index_select(0, inside)));
      EXPECT_TRUE((*y).narrow(0, kTokens - 2, 2).isnan().all().item<bool>());
      const auto [sorted, order] = at::sort(ids, /*stable=*/true, 0, false);
      const at::Tensor expected = at::zeros({kVocabulary, channels}, at::kDouble)
                                      .index_add(0, inside, wide(*dy).narrow(0, 0, kTokens - 2));
      for (const at::ScalarType grad_type : {at::kFloat, type}) {
        for (const bool add : {false, true}) {
          // As the op hands it over: zeros where nothing is to be added to.
          const Guarded dweight(at::full({kVocabulary, channels}, add ? 2 : 0, grad_type));
          cuda::embedding_backward({element_of(type), dy.data(), sorted.const_data_ptr<int64_t>(),
                                    order.const_data_ptr<int64_t>(), kTokens, channels, kVocabulary,
                                    element_of(grad_type), dweight.data(), add},
                                   kStream);
          EXPECT_LT(relative_error(*dweight, expected + (add ? 2 : 0)), tolerance_of(grad_type));
        }
      }
    }
  }
}

TEST(CudaKernels, RowSums) {
  at::manual_seed(6);
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {3, 7}, {5, 64}, {2, 2056}, {3, 64, 1}}) {
      for (const int64_t per_token : {1, 3, 8}) {
        const int64_t num_rows = size.rows * per_token;
        const Guarded x(random({num_rows, size.columns}, type), size.offset);
        const Guarded y({size.rows, size.columns}, type);
        const at::Tensor place = at::randperm(num_rows, at::kLong);
        const at::Tensor weights = random({size.rows, per_token}, at::kFloat);
        const at::Tensor parts =
            wide(*x).index_select(0, place).view({per_token, size.rows, size.columns});
        RowSumsArguments a{.type = element_of(type),
                           .x = x.data(),
                           .place = place.const_data_ptr<int64_t>(),
                           .weights = nullptr,
                           .y = y.data(),
                           .tokens = size.rows,
                           .per_token = per_token,
                           .columns = size.columns};
        cuda::row_sums(a, kStream);
        EXPECT_LT(relative_error(*y, parts.sum(0)), tolerance_of(type)) << name_of(size, type);
        a.weights = weights.const_data_ptr<float>();
        cuda::row_sums(a, kStream);
        EXPECT_LT(relative_error(*y, (parts * wide(weights).t().unsqueeze(2)).sum(0)),
                  tolerance_of(type))
            << name_of(size, type);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
