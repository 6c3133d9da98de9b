// SwiGLU: checks and choice of the device. The kernels are in swiglu_cpu.cpp.
#include "strata/ops/swiglu.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "swiglu";

MatrixView checked_view(const char* argument, const at::Tensor& tensor, const at::Tensor& like) {
  check_device_or_plan(kOp, tensor);
  if (tensor.dim() != 2) check_shape(kOp, argument, tensor, {-1, -1});
  check_shape(kOp, argument, tensor, like.sizes());
  check_type(kOp, argument, tensor, like.scalar_type());
  check_last_dim_contiguous(kOp, argument, tensor);
  return {tensor.is_meta() ? nullptr : const_cast<void*>(tensor.const_data_ptr()),
          tensor.stride(0)};
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const MatrixView gate_view = checked_view("gate", gate, gate);
  const MatrixView up_view = checked_view("up", up, gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(kOp, "gate", gate);
  const MatrixView y_view{y.mutable_data_ptr(), y.stride(0)};
  if constexpr (kHasCuda) {
    if (gate.is_cuda()) {
      cuda::swiglu(type, gate_view, up_view, y_view, gate.size(0), gate.size(1),
                   cuda::current_stream(gate));
      return y;
    }
  }
  cpu::swiglu(type, gate_view, up_view, y_view, gate.size(0), gate.size(1));
  return y;
}

void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                     at::Tensor& dgate, at::Tensor& dup) {
  const MatrixView gate_view = checked_view("gate", gate, gate);
  if (gate.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(kOp, "gate", gate);
  const MatrixView dy_view = checked_view("dy", dy, gate), up_view = checked_view("up", up, gate);
  const MatrixView dgate_view = checked_view("dgate", dgate, gate);
  const MatrixView dup_view = checked_view("dup", dup, gate);
  if constexpr (kHasCuda) {
    if (gate.is_cuda()) {
      return cuda::swiglu_backward(type, dy_view, gate_view, up_view, dgate_view, dup_view,
                                   gate.size(0), gate.size(1), cuda::current_stream(gate));
    }
  }
  cpu::swiglu_backward(type, dy_view, gate_view, up_view, dgate_view, dup_view, gate.size(0),
                       gate.size(1));
}

}  // namespace strata::ops
