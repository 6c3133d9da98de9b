// Copies between host memory and a device that do not hold the host up. Never: arithmetic.
#pragma once

#include <ATen/ATen.h>

namespace strata {

// A tensor of the CPU on `device`. To a GPU it goes through pinned memory, on the current stream;
// plain memory would make the host wait for everything enqueued before.
inline at::Tensor to_device(const at::Tensor& on_host, at::Device device) {
  if (!device.is_cuda() || !on_host.is_cpu()) return on_host.to(device);
  return on_host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace strata
