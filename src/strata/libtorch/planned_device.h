// What tensors without data (device "meta") stand for: the memory plan of a run on a GPU walks the
// same code as the run, which takes other memory there than on a CPU. Owns: that one fact, a label
// of the calling thread. Never: memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata {

inline thread_local c10::DeviceType planned_device = c10::DeviceType::CPU;

// Until the end of the scope, tensors without data stand for tensors on `device`.
class PlannedDeviceScope {
 public:
  explicit PlannedDeviceScope(c10::DeviceType device) : before_(planned_device) {
    planned_device = device;
  }
  ~PlannedDeviceScope() { planned_device = before_; }
  PlannedDeviceScope(const PlannedDeviceScope&) = delete;
  PlannedDeviceScope& operator=(const PlannedDeviceScope&) = delete;

 private:
  c10::DeviceType before_;
};

// Whether it is on a GPU, or stands for one that would be.
inline bool is_for_cuda(c10::Device device) {
  return device.is_cuda() || (device.is_meta() && planned_device == c10::DeviceType::CUDA);
}
inline bool is_for_cuda(const at::Tensor& tensor) { return is_for_cuda(tensor.device()); }

}  // namespace strata
