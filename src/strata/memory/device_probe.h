// What libtorch's caching allocator holds of a GPU, and what libraries take beside it. Owns: the
// reading of its statistics. Never: what tensors are for.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "strata/comm/mesh.h"

namespace strata::memory {

// Bytes; all 0 on devices without such an allocator.
struct DeviceMemory {
  int64_t allocated = 0;       // in tensors now
  int64_t allocated_peak = 0;  // at most since the start or reset_device_peak()
  int64_t reserved = 0;        // now, with what the allocator keeps for later
  int64_t reserved_peak = 0;   // the same at most
  int64_t free = 0;            // of the device, for anybody
  int64_t total = 0;
};
DeviceMemory device_memory(c10::Device device);
void reset_device_peak(c10::Device device);

// Workspaces of cuBLAS, one for each thread that multiplies: ours and autograd's. cuDNN's attention
// takes its own for the time of a call, about as much as FlashAttention.
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{64} << 20;

// A CUDA context with its libraries: 0.3 to 1.3 GB, by device and version.
inline constexpr int64_t kCudaContextBytes = 800'000'000;

// NCCL's buffers of one group of ranks by its defaults (2.28, src/include/comm.h): of each channel
// 4 MiB for the protocol Simple, 4.7 MiB for LL128 and 0.5 MiB for LL. It chooses the number of
// channels by the machine; 24 are its most inside one with NVLink.
inline constexpr int64_t kNcclGroupBytes =
    24 * ((int64_t{4} << 20) + 120 * 640 * 8 * 8 + (1 << 19));

// What these libraries take of a GPU in a run over the groups of a mesh.
int64_t device_library_bytes(const comm::Mesh& mesh);

}  // namespace strata::memory
