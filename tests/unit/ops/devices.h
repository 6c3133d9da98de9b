// The devices that tests of ops go over: the CPU always, a GPU where the build has kernels for it
// and the machine has one. Oracles are computed on the CPU.
#pragma once

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <vector>

#include "strata/libtorch/cuda_build.h"

namespace strata::ops {

inline std::vector<at::Device> devices_under_test() {
  std::vector<at::Device> devices{at::kCPU};
  if (kHasCuda && at::hasCUDA() && at::accelerator::deviceCount() > 0) {
    devices.emplace_back(at::kCUDA, 0);
  }
  return devices;
}

// Fp16 is a type of activations on GPUs alone. `narrow_on_gpu`: an op of fp32 on the CPU that takes
// the 16-bit types there.
inline std::vector<at::ScalarType> types_on(const std::vector<at::ScalarType>& types,
                                            bool narrow_on_gpu, at::Device device) {
  std::vector<at::ScalarType> all = types;
  if (device.is_cuda() && narrow_on_gpu) all.push_back(at::kBFloat16);
  if (device.is_cuda() && all.size() > 1) all.push_back(at::kHalf);
  return all;
}

// In double on the CPU.
inline at::Tensor wide(const at::Tensor& x) { return x.detach().cpu().to(at::kDouble); }

}  // namespace strata::ops
