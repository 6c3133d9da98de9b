// What libtorch's caching allocator holds of a GPU. Owns: the reading of its statistics. Never:
// what it is for.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace strata::memory {

// Bytes; all 0 on devices without such an allocator.
struct DeviceMemory {
  int64_t allocated = 0;       // in tensors now
  int64_t allocated_peak = 0;  // at most since the start or reset_device_peak()
  int64_t reserved_peak = 0;   // the same with what the allocator kept for later
  int64_t free = 0;            // of the device, for anybody
  int64_t total = 0;
};
DeviceMemory device_memory(c10::Device device);
void reset_device_peak(c10::Device device);

// Workspaces of cuBLAS, one for each thread that multiplies: ours and autograd's.
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{64} << 20;

}  // namespace strata::memory
