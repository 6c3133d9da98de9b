// Oracle: what each operation reads and writes by its definition. An access that were not recorded
// would hide every missing order: here the order is missing, and the pair must be named.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "strata/ops/adamw_factors.h"
#include "strata/ops/cuda_kernels.h"
#include "stream_order.h"

namespace emulated_gpu {
namespace {

// Before libtorch looks: every tensor is a block that nothing has written.
const int uncached = setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);

// Tensors stay until the end of a test: giving memory back waits for the device, and orders.
struct Recording : testing::Test {
  Recording() {
    at::set_num_threads(1);  // a child of a death test has no other
    cudaDeviceSynchronize();
  }
  ~Recording() override {
    set_strict(false);
    cudaDeviceSynchronize();
  }
  static at::Tensor zeros(int64_t numel, at::ScalarType type = at::kFloat) {
    const at::Tensor made = at::zeros({numel}, at::TensorOptions().dtype(type).device(at::kCUDA));
    cudaDeviceSynchronize();
    return made;
  }
  template <typename Work>
  static auto on(const c10::cuda::CUDAStream& stream, const Work& work) {
    const c10::cuda::CUDAStreamGuard guard(stream);
    return work();
  }

  c10::cuda::CUDAStream first = c10::cuda::getStreamFromPool();
  c10::cuda::CUDAStream second = c10::cuda::getStreamFromPool();
};
using RecordingDeathTest = Recording;

TEST_F(RecordingDeathTest, OurKernelsWrite) {
  const int64_t n = 100;
  const at::Tensor x = zeros(n), grad = zeros(n), mean = zeros(n), square = zeros(n);
  const at::Tensor copy = zeros(n, at::kBFloat16);
  strata::ops::cuda::adamw({.param = x.mutable_data_ptr<float>(),
                            .grad = grad.const_data_ptr<float>(),
                            .exp_avg = mean.mutable_data_ptr<float>(),
                            .exp_avg_sq = square.mutable_data_ptr<float>(),
                            .n = n,
                            .copy = {.data = copy.mutable_data_ptr()}},
                           {}, first.stream());
  for (const at::Tensor& written : {x, mean, square, copy}) {
    EXPECT_DEATH(on(second, [&] { return written.add(1); }),
                 "aten::add.Tensor .* reads .* which adamw .* writes, and nothing");
    // The last element, which is no part of a store of 16 bytes.
    EXPECT_DEATH(on(second, [&] { return written.narrow(0, n - 1, 1).add(1); }), "which adamw");
  }
  const at::Tensor read = on(second, [&] { return grad.add(1); });
}

TEST_F(RecordingDeathTest, OurKernelsRead) {
  const int64_t n = 1000;
  const at::Tensor x = zeros(n, at::kBFloat16), partials = zeros(8, at::kDouble);
  strata::ops::cuda::square_sum(strata::ops::Element::kBFloat16, x.const_data_ptr(), n,
                                partials.mutable_data_ptr<double>(), first.stream());
  EXPECT_DEATH(on(second, [&] { return x.zero_(); }), "writes .* which square_sum .* reads");
  EXPECT_DEATH(on(second, [&] { return x.narrow(0, n - 2, 2).zero_(); }), "which square_sum");
}

TEST_F(RecordingDeathTest, OperatorsOfLibtorch) {
  const at::Tensor x = zeros(8), y = zeros(8), z = zeros(8);
  on(first, [&] { return at::add_out(const_cast<at::Tensor&>(y), x, x); });
  EXPECT_DEATH(on(second, [&] { return y.add(1); }), "reads .* which aten::add.out .* writes");
  EXPECT_DEATH(on(second, [&] { return x.add_(1); }), "writes .* which aten::add.out .* reads");
  on(first, [&] { return z.add_(1); });
  EXPECT_DEATH(on(second, [&] { return z.mul(2); }), "which aten::add_.Tensor .* writes");
}

// An expanded view is one element, a transposed one none of what lies between its rows.
TEST_F(RecordingDeathTest, ViewsAreWhatTheyShow) {
  const at::Tensor x = zeros(8);
  const at::Tensor sum = on(first, [&] { return x.narrow(0, 2, 1).expand({4}).add(1); });
  on(second, [&] { return x.narrow(0, 3, 5).zero_(); });
  EXPECT_DEATH(on(second, [&] { return x.narrow(0, 2, 1).zero_(); }), "which aten::add.Tensor");
}

TEST_F(RecordingDeathTest, OperatorsThatOnlyGpusHave) {
  const at::Tensor a = zeros(16, at::kBFloat16).view({4, 4}), c = zeros(16).view({4, 4});
  on(first, [&] { return at::mm_out(const_cast<at::Tensor&>(c), a, a, at::kFloat); });
  EXPECT_DEATH(on(second, [&] { return c.add(1); }), "which mm into another type .* writes");
  EXPECT_DEATH(on(second, [&] { return a.zero_(); }), "which mm into another type .* reads");
}

TEST_F(RecordingDeathTest, StrictlyNothingUnwrittenIsUsed) {
  set_strict(true);
  const at::Tensor x = at::empty({8}, at::TensorOptions().device(at::kCUDA));
  EXPECT_DEATH(x.add(1), "reads .* which nothing has written");
  EXPECT_DEATH(x.add_(1), "reads .* which nothing has written");
  const at::Tensor moved = x.clone();
  x.zero_();
  const at::Tensor used = x.add(1);
  const auto scattered = [&](std::vector<int64_t> places) {
    const at::Tensor index = at::tensor(places).to(at::kCUDA);
    return at::empty_like(x).scatter_(0, index, x.narrow(0, 0, index.numel())).add(1);
  };
  scattered({3, 1, 0, 2, 7, 6, 5, 4});
  EXPECT_DEATH(scattered({3, 1, 0, 2, 7, 6, 5, 5}), "scatter.* reads .* which nothing has written");
  EXPECT_DEATH(scattered({3, 1, 0, 2}), "scatter.* reads .* which nothing has written");
}

TEST_F(RecordingDeathTest, TensorsOfTheHostBesideThoseOfTheDevice) {
  const at::Tensor x = zeros(4);
  EXPECT_THROW(x.add(at::ones({4})), c10::Error);
  EXPECT_DEATH(*x.mutable_data_ptr<float>() = 1, "the host writes device memory");
}

}  // namespace
}  // namespace emulated_gpu
