// The call of an operator or a library that the emulation computes itself. Owns: what it touches,
// recorded while it lives. Never: what it computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include "operators.h"

namespace emulated_gpu {

// Its arguments in fp32 on the host, its results on the device.
class Call {
 public:
  explicit Call(const char* name)
      : operation_(name, c10::cuda::getCurrentCUDAStream().stream()), name_(name) {}

  at::Tensor in(const at::Tensor& t) {
    TORCH_CHECK(t.is_cuda(), name_, ": found a tensor of the host");
    reads(operation_, t);
    return host_view(t);
  }
  at::Tensor in_fp32(const at::Tensor& t) {
    return in(t).to(at::kFloat, /*non_blocking=*/false, true);
  }
  at::Tensor out(const at::Tensor& result, at::ScalarType type) {
    return to_device(operation_, result.to(type).contiguous());
  }
  void into(const at::Tensor& to, const at::Tensor& result) {
    writes(operation_, to);
    host_view(to).copy_(result);
  }

  // Memory that is no tensor.
  void scratch(const void* memory, size_t size_bytes) { operation_.writes(memory, size_bytes); }

 private:
  Operation operation_;
  const char* name_;
};

}  // namespace emulated_gpu
