#include "strata/shard/slot_pool.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/libtorch/memory_kind.h"

namespace strata::shard {

at::Tensor SlotPool::allocate(int64_t numel, at::ScalarType type) {
  const MemoryScope scope(MemoryKind::kSlots);
  at::Tensor buffer = allocate_
                          ? allocate_(numel, type)
                          : at::empty({numel}, at::TensorOptions().dtype(type).device(device_));
  allocated_bytes_ += static_cast<int64_t>(buffer.nbytes());
  ++num_allocations_;
  ++num_of_size_[{type, numel}];
  return buffer;
}

void SlotPool::drop(size_t index) {
  const at::Tensor& buffer = free_[index];
  allocated_bytes_ -= static_cast<int64_t>(buffer.nbytes());
  --num_of_size_[{buffer.scalar_type(), buffer.numel()}];
  free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(index));
}

at::Tensor SlotPool::acquire(int64_t numel, at::ScalarType type) {
  // Latest given back first: it is the one most likely to be in the caches.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].numel() == numel && free_[i].scalar_type() == type) {
      at::Tensor buffer = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return buffer;
    }
  }
  return allocate(numel, type);
}

bool SlotPool::may_take(int64_t numel, int64_t size, at::ScalarType type) const {
  if (numel > size) return false;
  if (2 * numel >= size) return true;
  // Of a ring, as layers have it: one of its buffers is free whenever a unit is not a layer. Never
  // for a few adapter weights.
  const auto found = num_of_size_.find({type, size});
  return found != num_of_size_.end() && found->second >= 2 && 8 * numel >= size;
}

at::Tensor SlotPool::acquire_turn(int64_t numel, at::ScalarType type) {
  size_t best = free_.size();
  for (size_t i = free_.size(); i-- > 0;) {
    const at::Tensor& one = free_[i];
    if (one.scalar_type() != type || !may_take(numel, one.numel(), type)) continue;
    if (best == free_.size() || one.numel() < free_[best].numel()) best = i;
  }
  if (best == free_.size()) {
    at::Tensor buffer = allocate(numel, type);
    // From now on this one serves those that are smaller.
    for (size_t i = free_.size(); i-- > 0;) {
      const bool is_smaller = free_[i].scalar_type() == type && free_[i].numel() < numel;
      if (is_smaller && may_take(free_[i].numel(), numel, type)) drop(i);
    }
    return buffer;
  }
  at::Tensor buffer = std::move(free_[best]);
  free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
  if (buffer.numel() == numel) return buffer;
  lent_.push_back(buffer);
  return buffer.narrow(0, 0, numel);
}

void SlotPool::give_back(at::Tensor buffer) {
  if (!buffer.defined()) return;
  const auto whole =
      std::ranges::find_if(lent_, [&](const at::Tensor& lent) { return lent.is_alias_of(buffer); });
  if (whole != lent_.end()) {
    buffer = std::move(*whole);
    lent_.erase(whole);
  }
  free_.push_back(std::move(buffer));
}

void SlotPool::clear() {
  while (!free_.empty()) drop(free_.size() - 1);
}

}  // namespace strata::shard
