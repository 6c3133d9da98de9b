// Oracle: the formulas in double (tests/unit/ops/reference.h) and, bit for bit where nothing is
// summed, the CPU's kernels. The kernels for NVIDIA GPUs run here on the CPU, thread by thread
// (emulation/block.h): their arithmetic, indices and barriers, not their speed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstring>

#include "../ops/reference.h"
#include "strata/ops/adamw.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/uniform_noise.h"

namespace strata::ops {
namespace {

using reference::relative_error;

constexpr cuda::Stream kStream = nullptr;
const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

Element element_of(at::ScalarType type) {
  return type == at::kFloat      ? Element::kFloat
         : type == at::kBFloat16 ? Element::kBFloat16
                                 : Element::kHalf;
}

double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 1e-2;
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }
at::Tensor leaf(const at::Tensor& x) { return wide(x).clone().set_requires_grad(true); }

// Memory whose neighbours are watched: what a kernel writes into must lie between them.
class Guarded {
 public:
  // `offset`: elements behind an address that is a multiple of 64 bytes.
  Guarded(at::IntArrayRef shape, at::ScalarType type, int64_t offset = 0)
      : begin_(kGuard + offset), numel_(c10::multiply_integers(shape)) {
    all_ = at::full({begin_ + numel_ + kGuard}, kMark, at::TensorOptions().dtype(type));
    view_ = all_.narrow(0, begin_, numel_).view(shape);
    if (view_.is_floating_point()) view_.fill_(std::nan(""));  // whatever is not written shows
  }
  Guarded(const at::Tensor& values, int64_t offset = 0)
      : Guarded(values.sizes(), values.scalar_type(), offset) {
    view_.copy_(values);
  }
  ~Guarded() {
    EXPECT_TRUE(all_.narrow(0, 0, begin_).eq(kMark).all().item<bool>()) << "written before";
    EXPECT_TRUE(all_.narrow(0, begin_ + numel_, kGuard).eq(kMark).all().item<bool>())
        << "written behind";
  }
  const at::Tensor& operator*() const { return view_; }
  void* data() const { return view_.data_ptr(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(view_.data_ptr());
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr int kMark = 77;
  int64_t begin_, numel_;
  at::Tensor all_, view_;
};

struct Size {
  int64_t rows, columns, offset = 0;
};
std::string name_of(const Size& size, at::ScalarType type) {
  return fmt::format("{} x {} + {} {}", size.rows, size.columns, size.offset, c10::toString(type));
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1) {
  return (at::randn(shape, at::kDouble) * scale).to(type);
}

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
    const Guarded partials({cuda::rms_norm_partials(size.rows), size.columns}, at::kFloat);
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

TEST(CudaKernels, AdamW) {
  at::manual_seed(7);
  const AdamWStep options{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .step = 7,
                          .grad_scale = 0.5f};
  for (const Size& size : std::vector<Size>{{1, 1}, {1, 1023}, {1, 4096}, {1, 1000, 1}}) {
    const at::Tensor p = at::randn({size.columns}), g = at::randn({size.columns});
    const at::Tensor m = at::randn({size.columns}) * 0.1, v = m.square();
    const Guarded p_found(p, size.offset), m_found(m, size.offset), v_found(v, size.offset);
    const Guarded gradient(g, size.offset);
    cuda::adamw(p_found.as<float>(), gradient.as<float>(), m_found.as<float>(), v_found.as<float>(),
                size.columns, factors_of(options), kStream);
    adamw_(p, g, m, v, options);
    EXPECT_LT(relative_error(*p_found, p), 1e-6);
    EXPECT_LT(relative_error(*m_found, m), 1e-6);
    EXPECT_LT(relative_error(*v_found, v), 1e-6);
  }
}

TEST(CudaKernels, SquareSum) {
  at::manual_seed(8);
  for (const at::ScalarType type : kTypes) {
    for (const Size& size : std::vector<Size>{{1, 1}, {1, 4099}, {1, 140001}, {1, 4096, 1}}) {
      const Guarded x(random({size.columns}, type), size.offset);
      const Guarded partials({cuda::square_sum_partials(size.columns)}, at::kDouble);
      cuda::square_sum(element_of(type), x.data(), size.columns, partials.as<double>(), kStream);
      EXPECT_LT(relative_error((*partials).sum(), wide(*x).square().sum()), 1e-12)
          << name_of(size, type);
    }
  }
}

}  // namespace
}  // namespace strata::ops
