// Locked host memory as tensors. Never: a copy.
#include "strata/shard/pinned_memory.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/shard/locked_memory.h"

namespace strata::shard {

at::Tensor pinned_zeros_if_possible(int64_t numel, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  if (numel == 0) return at::empty({0}, options);
  void* memory = take_locked_memory(static_cast<size_t>(numel) * c10::elementSize(type));
  if (memory == nullptr) return {};
  return at::from_blob(memory, {numel}, give_back_locked_memory, options).zero_();
}

at::Tensor pinned_zeros(int64_t numel, at::ScalarType type) {
  at::Tensor zeros = pinned_zeros_if_possible(numel, type);
  if (zeros.defined()) return zeros;
  throw OutOfMemoryError(
      "offload: found no {} bytes of host memory to lock for the GPU, expected them for what rests "
      "on the host; offload to files (nvme), or use more machines",
      static_cast<size_t>(numel) * c10::elementSize(type));
}

}  // namespace strata::shard
