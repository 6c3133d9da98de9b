// Oracle: the kernels of the norm and of the rotation one after the other, to the bit where each
// value is rounded; the formulas in double (tests/unit/ops/reference.h) for gradients of weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "../ops/reference.h"
#include "kernel_arguments.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {
namespace {

constexpr double kEps = 1e-6;

struct Case {
  int64_t tokens, queries, keys, channels;
  at::ScalarType type, weight_type;
  RmsNormKind kind = RmsNormKind::kLlama;
  int64_t offset = 0;  // elements behind an address of packs
};

// Queries or keys with room for their results.
struct Heads {
  Heads(const Case& c, int64_t heads)
      : count(heads),
        x(random({c.tokens, heads * c.channels}, c.type), c.offset),
        y((*x).sizes(), c.type, c.offset),
        weight(random({c.channels}, c.weight_type)),
        rstd({c.tokens * heads}, at::kFloat),
        dy(random((*x).sizes(), c.type), c.offset),
        dx((*x).sizes(), c.type, c.offset),
        dweight(at::ones({c.channels}, at::kFloat)) {}

  NormRopeHeads arguments(const Case& c) const {
    return {x.data(), weight.data(), element_of(c.weight_type), rstd.as<float>(), count};
  }
  NormRopeGradients gradients(bool trains, float beta) const {
    return {dy.data(), dx.data(), trains ? dweight.data() : nullptr, Element::kFloat, beta};
  }

  int64_t count;
  Guarded x, y, weight, rstd, dy, dx, dweight;
};

struct Angles {
  explicit Angles(const Case& c) : values(at::randn({c.tokens, c.channels / 2}, at::kDouble) * 3) {}
  at::Tensor values;
  Guarded cos{values.cos().to(at::kFloat)}, sin{values.sin().to(at::kFloat)};
};

// x [tokens, heads * channels] turned in place.
void turn(const Case& c, const Heads& heads, const Angles& angles, void* x, bool inverse) {
  cuda::rope({.type = element_of(c.type),
              .x = {x, heads.count * c.channels, c.channels, heads.count},
              .cos = angles.cos.as<float>(),
              .sin = angles.sin.as<float>(),
              .tokens = c.tokens,
              .half = c.channels / 2,
              .inverse = inverse},
             kStream);
}

// To the bit, but where a row lies between packs: there the norm alone sums in another order.
void expect_same(const Case& c, const at::Tensor& found, const at::Tensor& expected) {
  if (c.offset == 0) {
    EXPECT_TRUE(at::equal(found, expected)) << c.channels << " channels";
  } else {
    EXPECT_LT(relative_error(found, wide(expected)), tolerance_of(c.type)) << c.channels;
  }
}

void expect_two_steps(const Case& c, const Heads& heads, const Angles& angles) {
  const Guarded y((*heads.y).sizes(), c.type, c.offset), turned(*heads.dy, c.offset);
  const Guarded dx((*heads.y).sizes(), c.type, c.offset), rstd((*heads.rstd).sizes(), at::kFloat);
  const RmsNormArguments a{
      element_of(c.type), element_of(c.weight_type), heads.x.data(), heads.weight.data(),
      rstd.as<float>(),   c.tokens * heads.count,    c.channels,     c.kind};
  cuda::rms_norm(a, y.data(), kEps, kStream);
  turn(c, heads, angles, y.data(), /*inverse=*/false);
  turn(c, heads, angles, turned.data(), /*inverse=*/true);
  cuda::rms_norm_backward(a, {turned.data(), nullptr, dx.data(), nullptr, Element::kFloat, 0},
                          nullptr, kStream);
  expect_same(c, *heads.rstd, *rstd);
  expect_same(c, *heads.y, *y);
  expect_same(c, *heads.dx, *dx);
}

void expect_weight_gradient(const Case& c, const Heads& heads, const Angles& angles, float beta) {
  const at::Tensor w64 = leaf(*heads.weight);
  const at::Tensor x = wide(*heads.x).view({c.tokens, heads.count, c.channels});
  const at::Tensor normed = c.kind == RmsNormKind::kGemma ? reference::gemma_norm(x, w64, kEps)
                                                          : reference::rms_norm(x, w64, kEps);
  torch::autograd::backward(
      {reference::rope(normed, angles.values.cos(), angles.values.sin()).flatten(1)},
      {wide(*heads.dy)});
  EXPECT_LT(relative_error(*heads.dweight, w64.grad() + beta), tolerance_of(c.type))
      << c.channels << " channels";
}

void check(const Case& c) {
  const Heads queries(c, c.queries), keys(c, c.keys);
  const Angles angles(c);
  const NormRopeArguments a{.type = element_of(c.type),
                            .kind = c.kind,
                            .queries = queries.arguments(c),
                            .keys = keys.arguments(c),
                            .cos = angles.cos.as<float>(),
                            .sin = angles.sin.as<float>(),
                            .tokens = c.tokens,
                            .channels = c.channels};
  cuda::norm_rope(a, queries.y.data(), keys.y.data(), kEps, kStream);
  cuda::norm_rope_backward(a, queries.gradients(false, 0), keys.gradients(false, 0), nullptr,
                           kStream);
  expect_two_steps(c, queries, angles);
  expect_two_steps(c, keys, angles);
  const int64_t blocks = cuda::rms_norm_partials(c.tokens * c.queries, c.channels) +
                         cuda::rms_norm_partials(c.tokens * c.keys, c.channels);
  const Guarded partials({blocks, c.channels}, at::kFloat);
  const at::Tensor dx = (*queries.dx).clone();
  cuda::norm_rope_backward(a, queries.gradients(true, 1), keys.gradients(true, 0),
                           partials.as<float>(), kStream);
  EXPECT_TRUE(at::equal(*queries.dx, dx)) << "beside sums of weights";
  expect_weight_gradient(c, queries, angles, 1);
  expect_weight_gradient(c, keys, angles, 0);
  // One of them trains.
  (*keys.dweight).fill_(5);
  cuda::norm_rope_backward(a, queries.gradients(true, 0), keys.gradients(false, 0),
                           partials.as<float>(), kStream);
  expect_weight_gradient(c, queries, angles, 0);
  EXPECT_TRUE((*keys.dweight).eq(5).all().item<bool>());
}

TEST(CudaKernels, NormRope) {
  at::manual_seed(3);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t channels : {8, 16, 32, 64, 128, 256, 512}) {
      check({3, 4, 2, channels, type, type});
      check({2, 3, 3, channels, type, at::kFloat, RmsNormKind::kGemma});
      check({1, 1, 1, channels, type, type, RmsNormKind::kOlmo});
    }
    check({5, 2, 1, 64, type, type, RmsNormKind::kLlama, /*offset=*/1});
    check({2, 2, 1, 256, type, type, RmsNormKind::kLlama, /*offset=*/1});
  }
}

// More rows than there are warps, or blocks with sums, in the grid.
TEST(CudaKernels, NormRopeOfManyRows) {
  at::manual_seed(4);
  check({1100, 9, 1, 8, at::kBFloat16, at::kBFloat16});
}

TEST(CudaKernels, WhatNormRopeFits) {
  for (const int64_t channels : {8, 64, 128, 256, 512}) {
    EXPECT_TRUE(cuda::fits_norm_rope(channels)) << channels;
  }
  for (const int64_t channels : {0, 2, 4, 12, 80, 96, 192, 1024}) {
    EXPECT_FALSE(cuda::fits_norm_rope(channels)) << channels;
  }
}

}  // namespace
}  // namespace strata::ops
