// SwiGLU and GeGLU: checks and choice of the device. The kernels are in swiglu_cpu.cpp and
// swiglu_cuda.cu.
#include "strata/ops/swiglu.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

const char* name_of(GateKind kind) { return kind == GateKind::kSilu ? "swiglu" : "geglu"; }

MatrixView checked_view(const char* op, const char* argument, const at::Tensor& tensor,
                        const at::Tensor& like) {
  check_device_or_plan(op, tensor);
  if (tensor.dim() != 2) check_shape(op, argument, tensor, {-1, -1});
  check_shape(op, argument, tensor, like.sizes());
  check_type(op, argument, tensor, like.scalar_type());
  check_last_dim_contiguous(op, argument, tensor);
  return {tensor.is_meta() ? nullptr : const_cast<void*>(tensor.const_data_ptr()),
          tensor.stride(0)};
}

at::Tensor gated(GateKind kind, const at::Tensor& gate, const at::Tensor& up) {
  const char* const op = name_of(kind);
  const MatrixView gate_view = checked_view(op, "gate", gate, gate);
  const MatrixView up_view = checked_view(op, "up", up, gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(op, "gate", gate);
  const MatrixView y_view{y.mutable_data_ptr(), y.stride(0)};
  if constexpr (kHasCuda) {
    if (gate.is_cuda()) {
      cuda::gated(kind, type, gate_view, up_view, y_view, gate.size(0), gate.size(1),
                  cuda::current_stream(gate));
      return y;
    }
  }
  cpu::gated(kind, type, gate_view, up_view, y_view, gate.size(0), gate.size(1));
  return y;
}

GatedGradients checked_views(const char* op, const at::Tensor& dy, const at::Tensor& gate,
                             const at::Tensor& up, const at::Tensor& dgate, const at::Tensor& dup) {
  return {.dy = checked_view(op, "dy", dy, gate),
          .gate = checked_view(op, "gate", gate, gate),
          .up = checked_view(op, "up", up, gate),
          .dgate = checked_view(op, "dgate", dgate, gate),
          .dup = checked_view(op, "dup", dup, gate)};
}

void gated_backward(GateKind kind, const at::Tensor& dy, const at::Tensor& gate,
                    const at::Tensor& up, at::Tensor& dgate, at::Tensor& dup) {
  const char* const op = name_of(kind);
  const GatedGradients views = checked_views(op, dy, gate, up, dgate, dup);
  if (gate.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(op, "gate", gate);
  if constexpr (kHasCuda) {
    if (gate.is_cuda()) {
      return cuda::gated_backward(kind, type, views, gate.size(0), gate.size(1),
                                  cuda::current_stream(gate));
    }
  }
  cpu::gated_backward(kind, type, views, gate.size(0), gate.size(1));
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(GateKind::kSilu, gate, up);
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(GateKind::kGeluTanh, gate, up);
}

void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                     at::Tensor& dgate, at::Tensor& dup) {
  gated_backward(GateKind::kSilu, dy, gate, up, dgate, dup);
}

void geglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                    at::Tensor& dgate, at::Tensor& dup) {
  gated_backward(GateKind::kGeluTanh, dy, gate, up, dgate, dup);
}

at::Tensor weighted_swiglu_backward(const at::Tensor& dy, const at::Tensor& weights,
                                    const at::Tensor& gate, const at::Tensor& up, at::Tensor& dgate,
                                    at::Tensor& dup) {
  constexpr const char* kOp = "weighted_swiglu_backward";
  const GatedGradients views = checked_views(kOp, dy, gate, up, dgate, dup);
  check_type(kOp, "weights", weights, at::kFloat);
  check_shape(kOp, "weights", weights, {gate.size(0)});
  check_contiguous(kOp, "weights", weights);
  check_same_device(kOp, "weights", weights, gate);
  at::Tensor dweights = at::empty_like(weights);
  if (gate.is_meta()) return dweights;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(kOp, "gate", gate);
  const RowWeights of_rows{weights.const_data_ptr<float>(), dweights.mutable_data_ptr<float>()};
  if constexpr (kHasCuda) {
    if (gate.is_cuda()) {
      cuda::weighted_swiglu_backward(type, views, of_rows, gate.size(0), gate.size(1),
                                     cuda::current_stream(gate));
      return dweights;
    }
  }
  cpu::weighted_swiglu_backward(type, views, of_rows, gate.size(0), gate.size(1));
  return dweights;
}

}  // namespace strata::ops
