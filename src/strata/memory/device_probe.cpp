#include "strata/memory/device_probe.h"

#include <ATen/DeviceAccelerator.h>

namespace strata::memory {

DeviceMemory device_memory(c10::Device device) {
  DeviceMemory memory;
  if (!device.is_cuda()) return memory;
  const auto stats = at::accelerator::getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  memory.allocated = stats.allocated_bytes[kAll].current;
  memory.allocated_peak = stats.allocated_bytes[kAll].peak;
  memory.reserved = stats.reserved_bytes[kAll].current;
  memory.reserved_peak = stats.reserved_bytes[kAll].peak;
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  memory.free = static_cast<int64_t>(free);
  memory.total = static_cast<int64_t>(total);
  return memory;
}

int64_t device_library_bytes(const comm::Mesh& mesh) {
  int64_t bytes = kGpuWorkspaceBytes;
  for (const comm::Group* group : {mesh.world.get(), mesh.shard.get(), mesh.replicate.get(),
                                   mesh.part.get(), mesh.sequence.get()}) {
    if (group != nullptr && group->size() > 1) bytes += kNcclGroupBytes;
  }
  return bytes;
}

void reset_device_peak(c10::Device device) {
  if (device.is_cuda()) at::accelerator::resetPeakStats(device.index());
}

}  // namespace strata::memory
