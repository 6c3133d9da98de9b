#include "strata/shard/slot_pool.h"

#include "strata/libtorch/memory_kind.h"

namespace strata::shard {

at::Tensor SlotPool::acquire(int64_t numel, at::ScalarType type) {
  // Latest given back first: it is the one most likely to be in the caches.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].numel() == numel && free_[i].scalar_type() == type) {
      at::Tensor buffer = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return buffer;
    }
  }
  const MemoryScope scope(MemoryKind::kSlots);
  at::Tensor buffer = allocate_
                          ? allocate_(numel, type)
                          : at::empty({numel}, at::TensorOptions().dtype(type).device(device_));
  allocated_bytes_ += static_cast<int64_t>(buffer.nbytes());
  ++num_allocations_;
  return buffer;
}

void SlotPool::give_back(at::Tensor buffer) {
  if (buffer.defined()) free_.push_back(std::move(buffer));
}

void SlotPool::clear() {
  for (const at::Tensor& buffer : free_) allocated_bytes_ -= static_cast<int64_t>(buffer.nbytes());
  free_.clear();
}

}  // namespace strata::shard
