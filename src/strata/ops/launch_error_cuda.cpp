// The error of a kernel that could not be launched, and the stream on which kernels run. Never: a
// kernel.
#include <ATen/DeviceAccelerator.h>

#include "strata/base/error.h"
#include "strata/ops/current_stream.h"

namespace strata::ops::cuda {

[[noreturn]] void throw_launch_error(const char* kernel, const char* message);

void throw_launch_error(const char* kernel, const char* message) {
  throw InternalError("{}: found a kernel that cannot be launched ({}), expected none; report this",
                      kernel, message);
}

Stream current_stream(const at::Tensor& tensor) {
  const c10::Stream stream = at::accelerator::getCurrentStream(tensor.device().index());
  return static_cast<Stream>(stream.native_handle());
}

}  // namespace strata::ops::cuda
