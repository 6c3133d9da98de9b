// What the tests of kernels for NVIDIA GPUs share: arguments in guarded memory, types, tolerances.
// The kernels run here on the CPU, thread by thread (emulation/block.h): their arithmetic, indices
// and barriers, not their speed.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../ops/reference.h"
#include "strata/ops/cuda_kernels.h"

namespace strata::ops {

using reference::relative_error;

inline constexpr cuda::Stream kStream = nullptr;
inline const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

inline Element element_of(at::ScalarType type) {
  return type == at::kFloat      ? Element::kFloat
         : type == at::kBFloat16 ? Element::kBFloat16
                                 : Element::kHalf;
}

inline double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 1e-2;
}

inline at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }
inline at::Tensor leaf(const at::Tensor& x) { return wide(x).clone().set_requires_grad(true); }

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
inline std::string name_of(const Size& size, at::ScalarType type) {
  return fmt::format("{} x {} + {} {}", size.rows, size.columns, size.offset, c10::toString(type));
}

inline at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1) {
  return (at::randn(shape, at::kDouble) * scale).to(type);
}

}  // namespace strata::ops
