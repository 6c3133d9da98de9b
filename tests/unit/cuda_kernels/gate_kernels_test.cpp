// Oracle: the formulas in double (tests/unit/ops/reference.h), differentiated by autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "../ops/reference.h"
#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

MatrixView view_of(const at::Tensor& x) { return {x.data_ptr(), x.stride(0)}; }

void check_gated(GateKind kind) {
  const auto expected = kind == GateKind::kSilu ? reference::swiglu : reference::geglu;
  // GELU's tail soon lies below what fp16 can hold.
  const double scale = kind == GateKind::kSilu ? 3.0 : 1.0;
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {3, 7}, {5, 64}, {2, 2056}, {3, 64, 1}}) {
      const Guarded fused(random({size.rows, 2 * size.columns}, type, scale), size.offset);
      const at::Tensor gate = (*fused).narrow(1, 0, size.columns);
      const at::Tensor up = (*fused).narrow(1, size.columns, size.columns);
      const Guarded y({size.rows, size.columns}, type), dy(random({size.rows, size.columns}, type));
      const at::Tensor g64 = leaf(gate), u64 = leaf(up), y64 = expected(g64, u64);
      cuda::gated(kind, element_of(type), view_of(gate), view_of(up), view_of(*y), size.rows,
                  size.columns, kStream);
      EXPECT_LT(relative_error(*y, y64), tolerance_of(type)) << name_of(size, type);
      torch::autograd::backward({y64}, {wide(*dy)});
      // In place, as the model does it.
      cuda::gated_backward(kind, element_of(type),
                           {view_of(*dy), view_of(gate), view_of(up), view_of(gate), view_of(up)},
                           size.rows, size.columns, kStream);
      EXPECT_LT(relative_error(gate, g64.grad()), tolerance_of(type)) << name_of(size, type);
      EXPECT_LT(relative_error(up, u64.grad()), tolerance_of(type)) << name_of(size, type);
    }
  }
}

TEST(CudaKernels, Swiglu) {
  at::manual_seed(3);
  check_gated(GateKind::kSilu);
}

// exp(-gate) beyond what a fast quotient divides by, and beyond fp32: nothing comes through.
TEST(CudaKernels, SwigluOfLargeGates) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Guarded gate(at::tensor({-120.0f, -88.0f, -87.5f, -30.0f, 0.0f, 30.0f, 88.0f, 300.0f})
                           .to(type)
                           .view({1, 8}));
    const Guarded up(at::full({1, 8}, 2.0, type)), y({1, 8}, type), dy(at::ones({1, 8}, type));
    const at::Tensor g64 = leaf(*gate), u64 = leaf(*up), y64 = reference::swiglu(g64, u64);
    torch::autograd::backward({y64}, {wide(*dy)});
    cuda::gated(GateKind::kSilu, element_of(type), view_of(*gate), view_of(*up), view_of(*y), 1, 8,
                kStream);
    const auto is_close = [&](const at::Tensor& found, const at::Tensor& expected) {
      return at::allclose(wide(found), expected, tolerance_of(type), /*atol=*/1e-30);
    };
    EXPECT_TRUE(is_close(*y, y64)) << *y;
    cuda::gated_backward(GateKind::kSilu, element_of(type),
                         {view_of(*dy), view_of(*gate), view_of(*up), view_of(*gate), view_of(*up)},
                         1, 8, kStream);
    EXPECT_TRUE(is_close(*gate, g64.grad())) << *gate;
    EXPECT_TRUE(is_close(*up, u64.grad())) << *up;
  }
}

TEST(CudaKernels, WeightedSwigluBackward) {
  at::manual_seed(7);
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {3, 7}, {5, 64}, {2, 2056}, {3, 64, 1}}) {
      const Guarded gate(random({size.rows, size.columns}, type, 3.0), size.offset);
      const Guarded up(random({size.rows, size.columns}, type)),
          dy(random({size.rows, size.columns}, type));
      const Guarded weights(random({size.rows}, at::kFloat)), dweights({size.rows}, at::kFloat);
      const at::Tensor g64 = leaf(*gate), u64 = leaf(*up), w64 = leaf(*weights);
      torch::autograd::backward({w64.unsqueeze(1) * reference::swiglu(g64, u64)}, {wide(*dy)});
      cuda::weighted_swiglu_backward(
          element_of(type),
          {view_of(*dy), view_of(*gate), view_of(*up), view_of(*gate), view_of(*up)},
          {weights.as<float>(), dweights.as<float>()}, size.rows, size.columns, kStream);
      EXPECT_LT(relative_error(*gate, g64.grad()), tolerance_of(type)) << name_of(size, type);
      EXPECT_LT(relative_error(*up, u64.grad()), tolerance_of(type)) << name_of(size, type);
      EXPECT_LT(relative_error(*dweights, w64.grad()), tolerance_of(type)) << name_of(size, type);
    }
  }
}

TEST(CudaKernels, Geglu) {
  at::manual_seed(3);
  check_gated(GateKind::kGeluTanh);
}

TEST(CudaKernels, ClampedSwiglu) {
  at::manual_seed(5);
  const ClampedGate by{.alpha = 1.5f, .limit = 3.0f};
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {3, 7}, {5, 64}, {2, 2056}, {3, 64, 1}}) {
      const Guarded both(random({size.rows, 2 * size.columns}, type, 3.0), size.offset);
      const Guarded y({size.rows, size.columns}, type), dy(random({size.rows, size.columns}, type));
      const at::Tensor both64 = leaf(*both);
      const at::Tensor y64 = reference::clamped_swiglu(both64, by.alpha, by.limit);
      const int64_t pairs = size.rows * size.columns;
      cuda::clamped_swiglu(element_of(type), both.data(), y.data(), pairs, by, kStream);
      EXPECT_LT(relative_error(*y, y64), tolerance_of(type)) << name_of(size, type);
      torch::autograd::backward({y64}, {wide(*dy)});
      cuda::clamped_swiglu_backward(element_of(type), both.data(), dy.data(), pairs, by, kStream);
      EXPECT_LT(relative_error(*both, both64.grad()), tolerance_of(type)) << name_of(size, type);
    }
  }
}

}  // namespace
}  // namespace strata::ops
