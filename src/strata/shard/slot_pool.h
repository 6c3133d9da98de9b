// Reusable buffers for gathered units and whole gradients. After the first step every request is
// met by a buffer that an earlier release gave back, so the steady state allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::shard {

// Memory: for acquire(), the largest number of buffers of each size that were in use at
// once; for acquire_turn() less, where units of several sizes are not in use at once.
// Threads: one.
class SlotPool {
 public:
  using Allocate = std::function<at::Tensor(int64_t numel, at::ScalarType type)>;

  // `allocate`: where new buffers come from; default: the device's allocator.
  explicit SlotPool(at::Device device, Allocate allocate = {})
      : device_(device), allocate_(std::move(allocate)) {}

  // A flat buffer of exactly `numel` elements; its content is undefined.
  at::Tensor acquire(int64_t numel, at::ScalarType type);
  // The same for what is released soon, perhaps the head of a larger buffer: an embedding and the
  // layers after it take turns.
  at::Tensor acquire_turn(int64_t numel, at::ScalarType type);
  void give_back(at::Tensor buffer);
  // Frees what was given back: for buffers of a size that the steps do not ask for.
  void clear();

  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t num_allocations() const { return num_allocations_; }

 private:
  at::Tensor allocate(int64_t numel, at::ScalarType type);
  // Whether a request may take a buffer of `size` elements without keeping from it what needs it.
  bool may_take(int64_t numel, int64_t size, at::ScalarType type) const;
  void drop(size_t index);

  at::Device device_;
  Allocate allocate_;
  std::vector<at::Tensor> free_;
  std::vector<at::Tensor> lent_;  // whole buffers of which acquire_turn() gave the head
  std::map<std::pair<at::ScalarType, int64_t>, int> num_of_size_;  // in use or free
  int64_t allocated_bytes_ = 0;
  int64_t num_allocations_ = 0;
};

}  // namespace strata::shard
