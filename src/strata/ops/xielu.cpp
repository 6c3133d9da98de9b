// xIELU: checks and choice of the device. The kernels are in xielu_cpu.cpp and xielu_cuda.cu.
#include "strata/ops/xielu.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/current_stream.h"
#include "strata/ops/xielu_kernels.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "xielu";

void check(const at::Tensor& x, const at::Tensor& numbers) {
  check_device_or_plan(kOp, x);
  if (x.dim() != 2) check_shape(kOp, "x", x, {-1, -1});
  check_contiguous(kOp, "x", x);
  check_type(kOp, "numbers", numbers, at::kFloat);
  check_shape(kOp, "numbers", numbers, {4});
  check_contiguous(kOp, "numbers", numbers);
  check_same_device(kOp, "numbers", numbers, x);
}

// Writes the sums of each row.
void differentiate(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& numbers,
                   const at::Tensor& sums) {
  const ActivityTimer timer(Activity::kElementWise);
  const XieluArguments a{element_of(kOp, "x", x), numbers.const_data_ptr<float>(), x.size(0),
                         x.size(1)};
  void* both = x.mutable_data_ptr();
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      return cuda::xielu_backward(a, both, dy.const_data_ptr(), sums.mutable_data_ptr<float>(),
                                  cuda::current_stream(x));
    }
  }
  cpu::xielu_backward(a, both, dy.const_data_ptr(), sums.mutable_data_ptr<float>());
}

}  // namespace

at::Tensor xielu(const at::Tensor& x, const at::Tensor& numbers) {
  check(x, numbers);
  at::Tensor y = at::empty_like(x);
  if (x.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const XieluArguments a{element_of(kOp, "x", x), numbers.const_data_ptr<float>(), x.size(0),
                         x.size(1)};
  if constexpr (kHasCuda) {
    if (x.is_cuda()) {
      cuda::xielu(a, x.const_data_ptr(), y.mutable_data_ptr(), cuda::current_stream(x));
      return y;
    }
  }
  cpu::xielu(a, x.const_data_ptr(), y.mutable_data_ptr());
  return y;
}

at::Tensor xielu_backward_(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& numbers) {
  check(x, numbers);
  check_shape(kOp, "dy", dy, x.sizes());
  check_type(kOp, "dy", dy, x.scalar_type());
  check_contiguous(kOp, "dy", dy);
  const at::Tensor sums = at::empty({x.size(0), 2}, numbers.options());
  if (!x.is_meta()) differentiate(x, dy, numbers, sums);
  return sums.sum(0);
}

}  // namespace strata::ops
