// The clamped SwiGLU: checks and choice of the device. The kernels are in clamped_swiglu_cpu.cpp
// and clamped_swiglu_cuda.cu.
#include "strata/ops/clamped_swiglu.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "clamped_swiglu";

// The number of pairs.
int64_t checked_pairs(const at::Tensor& gate_up) {
  check_device_or_plan(kOp, gate_up);
  if (gate_up.dim() != 2 || gate_up.size(1) % 2 != 0) {
    check_shape(kOp, "gate_up", gate_up, {-1, -1});
  }
  check_contiguous(kOp, "gate_up", gate_up);
  return gate_up.numel() / 2;
}

}  // namespace

at::Tensor clamped_swiglu(const at::Tensor& gate_up, const ClampedGate& gate) {
  const int64_t pairs = checked_pairs(gate_up);
  at::Tensor y = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  if (gate_up.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(kOp, "gate_up", gate_up);
  const void* from = gate_up.const_data_ptr();
  void* to = y.mutable_data_ptr();
  if constexpr (kHasCuda) {
    if (gate_up.is_cuda()) {
      cuda::clamped_swiglu(type, from, to, pairs, gate, cuda::current_stream(gate_up));
      return y;
    }
  }
  cpu::clamped_swiglu(type, from, to, pairs, gate);
  return y;
}

void clamped_swiglu_backward_(const at::Tensor& gate_up, const at::Tensor& dy,
                              const ClampedGate& gate) {
  const int64_t pairs = checked_pairs(gate_up);
  check_shape(kOp, "dy", dy, {gate_up.size(0), gate_up.size(1) / 2});
  check_type(kOp, "dy", dy, gate_up.scalar_type());
  check_contiguous(kOp, "dy", dy);
  if (gate_up.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  const Element type = element_of(kOp, "gate_up", gate_up);
  void* both = gate_up.mutable_data_ptr();
  if constexpr (kHasCuda) {
    if (gate_up.is_cuda()) {
      return cuda::clamped_swiglu_backward(type, both, dy.const_data_ptr(), pairs, gate,
                                           cuda::current_stream(gate_up));
    }
  }
  cpu::clamped_swiglu_backward(type, both, dy.const_data_ptr(), pairs, gate);
}

}  // namespace strata::ops
