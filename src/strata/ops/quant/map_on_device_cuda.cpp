// Copies of the dynamic map in the memory of a GPU. Never: its values.
#include "strata/ops/quant/map_on_device.h"

#include <ATen/ATen.h>

#include <map>
#include <mutex>

#include "strata/ops/quant/codebook.h"

namespace strata::ops::quant {

const float* map_on_device(bool is_signed, at::Device device) {
  static std::mutex mutex;  // backward runs on a thread of autograd's
  // Never destroyed: the driver may be gone before.
  static auto* copies = new std::map<std::pair<bool, int>, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& copy = (*copies)[{is_signed, device.index()}];
  if (!copy.defined()) {
    const auto& values = dynamic_map(is_signed);
    at::Tensor on_host = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
    std::memcpy(on_host.mutable_data_ptr(), values.data(), sizeof(values));
    copy = on_host.to(device);
  }
  return copy.const_data_ptr<float>();
}

}  // namespace strata::ops::quant
